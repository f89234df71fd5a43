"""How runs in one process end that cannot go on, and what they leave behind."""

import dataclasses
import os
import re
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest

from troupe import environments
from troupe.launch.errors import RequestError, RunError
from troupe.launch.files.checkpoints import Store
from troupe.launch.files.directory import RunDirectory
from troupe.launch.local import run as local
from troupe.launch.logging.report import Plain
from troupe.launch.specification.recipe import Recipe

from .mistaken import mistaken
from .test_run import Lines


def run(recipe, out, **options):
    return local.run(recipe.experiment(), out, request=recipe.to_json(), **options)


def content(folder):
    """Every file of a folder, and when it was written."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_a_run_without_checkpoints_is_not_begun_anew(tiny, tmp_path):
    """It started from 0 and wrote `metrics.jsonl` anew."""
    recipe = tiny()
    with RunDirectory(tmp_path) as directory:
        directory.create()
        directory.write(directory.config, recipe.to_json())
        directory.metrics.write_text('{"kind": "train", "actor_steps": 100}\n')
    before = content(tmp_path)
    with pytest.raises(RequestError, match="has no checkpoint to go on from"):
        run(recipe, tmp_path, resume=True)
    assert content(tmp_path) == before


def a_mistake_of_the_user():
    return {}["no such key"]


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (a_mistake_of_the_user, "KeyError: 'no such key'; a checkpoint was saved"),
        (lambda: sys.exit(3), "SystemExit: 3; a checkpoint was saved"),
    ],
)
def test_where_a_mistake_is_stands_in_the_log(tiny, tmp_path, mistake, message):
    experiment = mistaken(tiny(env="fake/discrete"), mistake)
    with pytest.raises(RunError, match=message) as failed:
        local.run(experiment, tmp_path)
    log = tmp_path / "logs" / "main.log"
    assert str(log) in str(failed.value)
    assert "\n" not in str(failed.value)
    written = log.read_text()
    assert "Traceback" in written
    assert f", in {mistake.__name__}" in written
    assert Store(tmp_path / "checkpoints").newest(pytest.fail).counters["actor_steps"] == 90


def test_the_budget_is_never_exceeded(tiny, tmp_path):
    recipe = tiny(config={"num_envs": 7})
    assert 200 - 7 < run(recipe, tmp_path).actor_steps <= 200
    with pytest.raises(RequestError, match="is complete"):
        run(recipe, tmp_path, resume=True)


@pytest.mark.parametrize(
    ("agent", "steps", "config", "message"),
    [
        ("dqn", 15, {}, r"waits for 16 items \(--config.min_replay_size\).*--steps 20"),
        (
            "dqn",
            200,
            {"steps_per_dispatch": 128},
            r"128 batches of 4 .*per_dispatch\).*--steps 272",
        ),
        ("dqn", 99, {"min_replay_size": 1000, "max_replay_size": 1000}, "waits for 1,000 items"),
        (
            "ppo",
            500,
            {"num_envs": 8, "rollout_length": 128},
            r"8 rollouts of 128 steps \(--config.rollout_length\).*--steps 1024",
        ),
    ],
)
def test_a_budget_too_small_to_learn_is_spent_and_warned_of(
    tiny, tmp_path, agent, steps, config, message
):
    recipe = tiny(steps=steps, config=config) if agent == "dqn" else None
    recipe = recipe or Recipe(agent, "CartPole-v1", config, steps=steps)
    reporter = Lines()
    result = run(recipe, tmp_path / "run", reporter=reporter)
    assert result.learner_steps == 0
    assert result.evaluation
    first, last = (line for line in reporter.lines if line.startswith("warning: "))
    assert re.search(message, first), first
    assert "nothing was learned" in last
    assert f"troupe resume {tmp_path / 'run'} --steps N" in last
    # What it has learned by more steps it goes on with.
    more = dataclasses.replace(recipe, steps=2_500)
    assert run(more, tmp_path / "run", resume=True).learner_steps > 0


def test_a_budget_of_less_than_a_step_of_all_environments_is_refused(tiny, tmp_path):
    with pytest.raises(RequestError, match=r"--steps is 1, and 2 environments.*--config.num_envs"):
        run(tiny(steps=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_agent_that_cannot_names_those_that_can(tiny, tmp_path):
    with pytest.raises(
        ValueError, match=r"dqn drives one discrete action; .*Agents that can: .*ppo"
    ):
        run(tiny(env="Pendulum-v1"), tmp_path / "run")


def test_devices_that_are_not_there_are_named(tiny, tmp_path, monkeypatch):
    def none():
        raise AssertionError

    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(jax, "local_devices", none)
    with pytest.raises(ValueError, match="JAX_PLATFORMS is 'cuda', and jax finds no such device"):
        run(tiny(), tmp_path / "run")


class Unbounded(environments.fakes.Fake):
    """Actions are any real numbers."""

    def __init__(self, seed):
        spec = environments.make_spec(environments.fakes.continuous(seed=0))
        actions = environments.specs.Array((2,), np.float32, "action")
        super().__init__(spec._replace(actions=actions), seed=seed)


def test_ppo_drives_actions_without_bounds_and_says_that_it_learned_nothing(tmp_path):
    """How many rows of rollouts come of so many steps cannot be known before."""

    def factory(*, seed, num_envs, evaluation):
        made = [
            environments.Conform(Unbounded(seed + i), name="unbounded", actions="clip")
            for i in range(num_envs)
        ]
        return environments.Vector(made)

    recipe = Recipe(
        "ppo", "unbounded", {"num_envs": 2, "rollout_length": 32, "hidden_sizes": (8,)}, steps=40
    )
    experiment = dataclasses.replace(recipe.experiment(), environment_factory=factory)
    assert local.run(experiment, tmp_path).learner_steps == 0
    assert "warning: nothing was learned" in (tmp_path / "logs" / "main.log").read_text()


class Gone:
    """A stream whose reader has left."""

    def __init__(self, stream):
        self._stream = stream

    def write(self, text):
        raise BrokenPipeError

    def flush(self):
        pass

    def fileno(self):
        return self._stream.fileno()


def test_what_nobody_hears_does_not_end_a_run(tmp_path):
    with open(tmp_path / "output", "w") as output:
        reporter = Plain(Gone(output), seconds=0.0)
        reporter.line("evaluation at 1 actor steps")
        print("more", file=output, flush=True)
    assert (tmp_path / "output").read_text() == ""


WITHOUT = """
    import os, sys
    os.close(1)
    sys.stdout = None  # As Python has it where it begins without.
    from troupe.baselines.command import main
    sys.argv[1:] = sys.argv[1].split()
    sys.exit(main())
"""


def test_a_process_without_an_output_trains(tmp_path):
    arguments = (
        f"train dqn --env fake/discrete --steps 60 --out {tmp_path / 'run'} "
        "--config.hidden_sizes 8 --config.min_replay_size 16 --config.batch_size 4"
    )
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT), arguments],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XLA_FLAGS": ""},
    )
    assert (process.returncode, process.stderr) == (0, "")
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert all(row.startswith("{") for row in rows), "its words went into a file of the run"
