"""Programs of many roles keep their best policy, tell callbacks, and end where these ask."""

import dataclasses
import json
import os
import threading

import pytest

pytest.importorskip("launchpad")
pytest.importorskip("reverb")

from troupe import launch
from troupe.launch.logging import metrics

pytestmark = [pytest.mark.distributed, pytest.mark.long]


class Noted(launch.Callback):
    """Counts its calls, and cannot travel to another process."""

    def __init__(self):
        self.calls, self._lock = {}, threading.Lock()

    def _count(self, hook):
        self.calls[hook] = self.calls.get(hook, 0) + 1

    def on_begin(self, directory, config):
        self._count("begin")

    def on_metrics(self, row):
        self._count("metrics")

    def on_evaluation(self, row):
        self._count("evaluation")

    def on_checkpoint(self, path, counts):
        assert (path / "manifest.json").exists()
        self._count("checkpoint")

    def on_end(self, result):
        self._count("end")


def run(recipe, out, **roles):
    noted = Noted()
    experiment = dataclasses.replace(recipe.experiment(), callbacks=[noted])
    program = launch.make_program(experiment, out, **roles)
    kind = recipe.launch
    return launch.launch(program, kind, progress=False, request=recipe.to_json()), noted.calls


SCALES = [("processes", {"actors": 2, "evaluators": 2})]
if os.environ.get("TROUPE_FULL"):
    SCALES += [("threads", {}), ("processes", {"learner_hosts": 2})]


@pytest.mark.parametrize(("kind", "roles"), SCALES)
def test_every_launch_keeps_its_best_policy_and_tells(tiny, tmp_path, monkeypatch, kind, roles):
    monkeypatch.setenv("XLA_FLAGS", "")
    recipe = tiny(launch=kind, roles=roles, steps=1500, evaluation={"every": 200})
    result, calls = run(recipe, tmp_path, **roles)
    rows = list(metrics.read(tmp_path / "metrics.jsonl"))
    assert calls.pop("metrics") == sum(row["kind"] == "train" for row in rows)
    assert calls.pop("evaluation") == len(result.evaluation)
    judged = [row for row in rows if row["kind"] == "evaluation"]
    for name in ("actor_steps", "learner_steps", "mean"):
        assert [row[name] for row in judged] == [one[name] for one in result.evaluation]
    assert calls.pop("checkpoint") >= 2
    assert calls == {"begin": 1, "end": 1}
    assert result.best["mean"] == max(one["mean"] for one in result.evaluation)
    again = launch.evaluate(tmp_path, which="best").summary()
    assert again == {name: result.best[name] for name in again}
    assert launch.load_policy(tmp_path).actor_steps == result.actor_steps


def test_a_program_stops_at_its_target(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    judging = {"every": 200, "target_return": 1.0, "stop_at_target": True}
    recipe = tiny(launch="threads", steps=10**9, evaluation=judging)
    result, _ = run(recipe, tmp_path)
    assert result.reached
    assert "has reached the target of 1" in result.ended
    assert launch.evaluate(tmp_path, which="best").actor_steps == result.best["actor_steps"]
    assert json.loads((tmp_path / "result.json").read_text())["ended"] == result.ended
