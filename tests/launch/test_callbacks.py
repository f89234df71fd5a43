"""Callbacks are told what happens, end a run where they ask, and harm it only where they may."""

import dataclasses
import glob
import json
import os
import pathlib
import subprocess
import sys

import pytest

from troupe import launch
from troupe.launch.callbacks import HOOKS
from troupe.launch.files.directory import RunDirectory
from troupe.launch.logging import metrics


class Noted(launch.Callback):
    """Notes what it is told; `fails` and `ends` are hooks."""

    def __init__(self, fails=(), ends=None, fatal=False):
        self.calls, self._fails, self._ends, self.fatal = [], fails, ends, fatal

    def _note(self, hook, told):
        self.calls.append((hook, told))
        if hook in self._fails:
            raise KeyError("no such thing")
        if hook == self._ends:
            raise launch.StopRun("enough")

    def on_begin(self, directory, config):
        self._note("on_begin", (directory, config))

    def on_metrics(self, row):
        self._note("on_metrics", row)

    def on_evaluation(self, row):
        self._note("on_evaluation", row)

    def on_checkpoint(self, path, counts):
        assert (path / "manifest.json").exists()
        self._note("on_checkpoint", counts)

    def on_end(self, result):
        self._note("on_end", result)

    def told(self, hook):
        return [told for name, told in self.calls if name == hook]


def run(recipe, out, *callbacks, **options):
    experiment = dataclasses.replace(recipe.experiment(), callbacks=callbacks)
    return launch.run(experiment, out, **{"progress": False, **options})


def test_every_row_and_checkpoint_is_told(tiny, tmp_path):
    noted = Noted()
    result = run(tiny(checkpointing={"every_steps": 90}), tmp_path, noted)
    rows = list(metrics.read(tmp_path / "metrics.jsonl"))
    assert noted.told("on_metrics") == [row for row in rows if row["kind"] == "train"]
    assert noted.told("on_evaluation") == [row for row in rows if row["kind"] == "evaluation"]
    assert len(noted.told("on_checkpoint")) == 3
    assert noted.told("on_begin") == [(tmp_path, RunDirectory(tmp_path).read_config())]
    assert noted.told("on_end") == [result]
    assert (noted.calls[0][0], noted.calls[-1][0]) == ("on_begin", "on_end")
    # Rates are of the steps and seconds between rows.
    assert rows[-2]["actor_steps_per_second"] > 0
    assert rows[-2]["learner_steps_per_second"] > 0


def test_an_error_in_a_callback_is_told_and_the_run_goes_on(tiny, tmp_path, capsys):
    noted = Noted(fails=HOOKS)
    result = run(tiny(), tmp_path, noted, progress=True)
    assert result.actor_steps >= 199
    assert len(noted.told("on_evaluation")) == 3
    told = [line for line in capsys.readouterr().out.splitlines() if "warning: " in line]
    assert len(told) == len(HOOKS), "once for each hook"
    for hook in HOOKS:
        assert any(f"Noted failed in {hook} (KeyError: 'no such thing')" in line for line in told)
    assert "in _note" in (tmp_path / "logs" / "main.log").read_text()


def test_a_fatal_error_in_a_callback_ends_the_run_with_a_checkpoint(tiny, tmp_path):
    noted = Noted(fails=["on_evaluation"], fatal=True)
    with pytest.raises(launch.RunError, match=r"Noted failed in on_evaluation .* was saved"):
        run(tiny(), tmp_path, noted)
    assert noted.told("on_end") == [None]
    assert run(tiny(), tmp_path, resume=True).actor_steps >= 199


def test_a_callback_ends_a_run_early(tiny, tmp_path):
    noted = Noted(ends="on_evaluation")
    result = run(tiny(), tmp_path, noted)
    assert (result.ended, result.reached) == ("enough", None)
    assert [one["actor_steps"] for one in result.evaluation] == [result.actor_steps]
    assert result.actor_steps < 100
    assert noted.told("on_checkpoint")[-1]["actor_steps"] == result.actor_steps
    assert run(tiny(), tmp_path, resume=True).ended is None


def test_a_run_stops_at_its_target(tiny, tmp_path, capsys):
    recipe = tiny(evaluation={"target_return": 1.0, "stop_at_target": True})
    result = run(recipe, tmp_path, progress=True)
    assert result.reached
    assert result.actor_steps < 100
    assert "has reached the target of 1" in result.ended
    assert "ended early: " in capsys.readouterr().out
    with pytest.raises(launch.RequestError, match="complete: it has reached its target"):
        run(recipe, tmp_path, resume=True)
    further = tiny(evaluation={"target_return": 1.0})
    assert run(further, tmp_path, resume=True).actor_steps >= 199
    with pytest.raises(launch.RequestError, match="has none; give one"):
        launch.Evaluation(stop_at_target=True)


@pytest.mark.parametrize(
    ("callbacks", "words"),
    [(Noted, "sequence"), ([Noted], "is a class"), ([print], "has no on_begin"), ("x", "sequence")],
)
def test_what_is_no_callback_is_refused(tiny, callbacks, words):
    with pytest.raises(launch.RequestError, match=words):
        dataclasses.replace(tiny().experiment(), callbacks=callbacks)


def test_progress_is_shown_unless_it_is_not_to_be(tiny, tmp_path, capsys):
    launch.run(tiny().experiment(), tmp_path / "a")
    assert "evaluation at" in capsys.readouterr().out
    launch.run(tiny().experiment(), tmp_path / "b", progress=False)
    assert capsys.readouterr().out == ""


def test_tensorboard_is_told_the_settings(tiny, tmp_path):
    run(tiny(), tmp_path)
    (events,) = tmp_path.glob("events.out.tfevents.*")
    found = {}
    for event in read_events(events):
        for value in event.summary.value:
            found[value.tag] = value
    assert "train/actor_steps_per_second" in found
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    content = found["_hparams_/session_start_info"].metadata.plugin_data.content
    settings = HParamsPluginData.FromString(content).session_start_info.hparams
    assert settings["agent"].string_value == "dqn"
    assert settings["config.batch_size"].number_value == 4
    assert settings["launch"].string_value == "one-process"


def read_events(path):
    """The records of an event file: a length, its sum, the record, its sum."""
    from tensorboardX.proto.event_pb2 import Event

    content, at = path.read_bytes(), 0
    while at < len(content):
        size = int.from_bytes(content[at : at + 8], "little")
        yield Event.FromString(content[at + 12 : at + 12 + size])
        at += 12 + size + 4


WANDB = """
import sys
from troupe.baselines.command.line import main
sys.exit(main(sys.argv[1:]))
"""


def test_weights_and_biases_is_told_offline(tmp_path):
    pytest.importorskip("wandb")
    out = tmp_path / "run"
    config = {"hidden_sizes": 8, "batch_size": 4, "min_replay_size": 16, "max_replay_size": 100}
    arguments = [f"--config.{name}={value}" for name, value in config.items()]
    environment = {**os.environ, "WANDB_MODE": "offline", "HOME": str(tmp_path), "XLA_FLAGS": ""}
    task = ["dqn", "--env", "CartPole-v1", "--steps", "60", "--wandb", "tests", *arguments]
    done = subprocess.run(
        [sys.executable, "-c", WANDB, "train", *task, "--out", str(out)],
        env=environment,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((out / "config.json").read_text())["wandb"] == "tests"
    (written,) = glob.glob(f"{out}/wandb/offline-run-*/*.wandb")
    content = pathlib.Path(written).read_bytes()
    for word in (b"evaluation/mean", b"train/actor_steps_per_second", b"batch_size"):
        assert word in content, word
