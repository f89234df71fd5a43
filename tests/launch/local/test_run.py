"""A run in one process: what it leaves behind, that it repeats exactly, and that it goes on."""

import dataclasses
import json
import os
import signal

import jax
import numpy as np
import pytest

from troupe import environments
from troupe.launch.errors import Interrupted, RequestError, RunError
from troupe.launch.files.checkpoints import CheckpointError, Store
from troupe.launch.files.directory import RunDirectory
from troupe.launch.local import run as local
from troupe.launch.logging import metrics
from troupe.launch.logging.report import Reporter
from troupe.launch.specification.recipe import Recipe

from .mistaken import mistaken


class Lines(Reporter):
    def __init__(self):
        self.lines = []

    def line(self, text):
        self.lines.append(text)


def run(recipe, out, **options):
    return local.run(recipe.experiment(), out, request=recipe.to_json(), **options)


def parameters(out):
    """The arrays of the newest checkpoint's learner, as bytes."""
    store = Store(RunDirectory(out).checkpoints)
    path = store.newest(pytest.fail).path / "learner.npz"
    with np.load(path) as arrays:
        return {name: arrays[name].tobytes() for name in arrays.files if name != "structure"}


RESULT_KEYS = [
    "agent",
    "env",
    "seed",
    "launch",
    "actors",
    "learner_hosts",
    "mesh",
    "devices",
    "actor_steps",
    "learner_steps",
    "episodes",
    "wall_seconds",
    "train_seconds",
    "actor_steps_per_second",
    "learner_steps_per_second",
    "samples_per_insert",
    "evaluation",
    "versions",
]


def test_a_run_leaves_what_its_directory_promises(tiny, tmp_path):
    recipe, out, reporter = tiny(), tmp_path / "run", Lines()
    result = run(recipe, out, reporter=reporter)
    found = json.loads((out / "result.json").read_text())
    assert found == result.to_json()
    assert list(found)[: len(RESULT_KEYS)] == RESULT_KEYS
    assert (found["agent"], found["env"], found["seed"]) == ("dqn", "CartPole-v1", 0)
    assert (found["launch"], found["actors"], found["mesh"]) == ("one-process", 1, None)
    assert found["actor_steps"] in (199, 200)
    # 16 transitions before the first batch of 4, then 2 samples an insert.
    assert found["learner_steps"] == pytest.approx((200 - 16) * 2 / 4, abs=2)
    assert [entry["actor_steps"] // 80 for entry in found["evaluation"]] == [1, 2, 2]
    assert [entry["episodes"] for entry in found["evaluation"]] == [3, 3, 4]
    assert found["samples_per_insert"]["target"] == 2.0
    assert found["samples_per_insert"]["observed"] == pytest.approx(2.0, rel=0.1)
    assert found["versions"]["jax"] == jax.__version__
    assert 0 < found["train_seconds"] < found["wall_seconds"]
    assert json.loads((out / "config.json").read_text()) == recipe.to_json()
    rows = list(metrics.read(out / "metrics.jsonl"))
    assert {row["kind"] for row in rows} == {"train", "evaluation"}
    assert rows[-1]["actor_steps"] == found["actor_steps"]
    assert all(name in rows[-1] for name in metrics.COUNTS)
    assert "loss" in next(row for row in reversed(rows) if row["kind"] == "train")
    assert list(out.glob("events.out.tfevents.*"))
    assert "evaluation at" in (out / "logs" / "main.log").read_text()
    assert len([line for line in reporter.lines if line.startswith("evaluation")]) == 3


def test_a_seed_repeats_a_run_exactly_and_another_does_not(tiny, tmp_path):
    results = [
        run(tiny(seed=seed), tmp_path / name) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    first, again, other = (result.evaluation for result in results)
    assert first == again != other
    assert parameters(tmp_path / "a") == parameters(tmp_path / "b") != parameters(tmp_path / "c")


def test_evaluations_and_checkpoints_do_not_change_what_is_learned(tiny, tmp_path):
    run(tiny(), tmp_path / "a")
    run(
        tiny(evaluation={"every": 30, "episodes": 1}, checkpointing={"every_steps": 50}),
        tmp_path / "b",
    )
    assert parameters(tmp_path / "a") == parameters(tmp_path / "b")


def test_ppo_runs_in_the_same_loop(tiny, tmp_path):
    config = {"hidden_sizes": "8", "num_envs": 2, "rollout_length": 8, "num_minibatches": 2}
    recipe = tiny()
    recipe = type(recipe)(agent="ppo", env="CartPole-v1", config=config, steps=200)
    result = run(recipe, tmp_path / "run")
    assert result.learner_steps == pytest.approx(200 / 16, abs=2)
    assert result.samples_per_insert["target"] is None


def test_a_partitioned_run_learns_what_one_device_learns(tiny, tmp_path):
    alone = run(tiny(), tmp_path / "alone")
    spread = run(tiny(mesh="data=2", schedule="batch:data"), tmp_path / "spread")
    assert (alone.mesh, spread.mesh) == (None, "data=2")
    assert spread.learner_steps == alone.learner_steps
    assert spread.evaluation[0]["actor_steps"] == alone.evaluation[0]["actor_steps"]
    for one, other in zip(*map(learned, (tmp_path / "alone", tmp_path / "spread")), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def learned(out):
    """The leaves of the newest checkpoint's learner."""
    recipe = Recipe.from_json(RunDirectory(out).read_config())
    experiment = dataclasses.replace(recipe, mesh=None, schedule=None).experiment()
    with local.components.make_environment(experiment, 0) as environment:
        made = local.components.make(experiment, environment)
        checkpoint = Store(RunDirectory(out).checkpoints).newest(pytest.fail)
        return jax.tree.leaves(checkpoint.read("learner", like=made.learner.save()))


class StopAt(Reporter):
    """A reporter that stops the run as a signal would, when it is told of the n-th evaluation."""

    def __init__(self, number, signal_number):
        self.left, self.signal_number = number, signal_number

    def line(self, text):
        if text.startswith("evaluation"):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), self.signal_number)

    def close(self):
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_ends_and_the_run_goes_on(tiny, tmp_path, number):
    recipe = tiny()
    handler = signal.getsignal(number)
    with pytest.raises(Interrupted, match=r"stopped at 1?\d\d actor steps") as stopped:
        run(recipe, tmp_path, reporter=StopAt(1, number))
    assert stopped.value.signal_number == number
    assert signal.getsignal(number) is handler
    checkpoint = Store(tmp_path / "checkpoints").newest(pytest.fail)
    before = checkpoint.counters
    assert 80 <= before["actor_steps"] < 100
    assert not (tmp_path / "result.json").exists()
    assert checkpoint.parts == ("learner", "actor", "replay")
    result = run(recipe, tmp_path, resume=True)
    assert 198 < result.actor_steps <= 200
    assert result.learner_steps == pytest.approx((200 - 16) * 2 / 4, abs=4)
    assert [entry["actor_steps"] // 80 for entry in result.evaluation] == [1, 2, 2]
    rows = list(metrics.read(tmp_path / "metrics.jsonl"))
    assert [row["actor_steps"] for row in rows] == sorted(row["actor_steps"] for row in rows)
    assert rows[-1]["wall_seconds"] > before["wall_seconds"]


def test_a_resumed_run_goes_on_with_other_episodes(tiny):
    experiment = tiny().experiment()
    observations = []
    for resumed in (0, 1):
        with local.components.make_environment(experiment, resumed) as environment:
            observations.append(environment.reset().observation)
    assert not np.array_equal(*observations)


def test_the_policy_goes_on_where_it_was(tiny, tmp_path):
    """The schedule of exploration counts its steps in the state of the policy."""
    recipe = tiny()
    with pytest.raises(Interrupted):
        run(recipe, tmp_path, reporter=StopAt(1, signal.SIGTERM))
    experiment = recipe.experiment()
    checkpoint = Store(tmp_path / "checkpoints").newest(pytest.fail)
    with local.components.make_environment(experiment, 1) as environment:
        made = local.components.make(experiment, environment)
        fresh = made.actor.save()
        local.saver.restore(checkpoint, made, pytest.fail)
        np.testing.assert_array_equal(fresh.num_actions, [0, 0])
        assert (made.actor.save().num_actions >= 40).all()
        assert made.learner.steps == checkpoint.counters["learner_steps"]
        assert made.replay.inserted > 70


class Foreign:
    """A learner that does not say what it saves."""

    def __init__(self, learner):
        self._learner = learner

    def __getattr__(self, name):
        if name == "saved_shapes":
            raise AttributeError(name)
        return getattr(self._learner, name)


def test_a_learner_that_does_not_say_what_it_saves_goes_on(tiny, tmp_path):
    recipe = tiny()

    class Builder(type(recipe.experiment().builder)):
        def make_learner(self, *arguments, **options):
            return Foreign(super().make_learner(*arguments, **options))

    whole = recipe.experiment()
    experiment = dataclasses.replace(whole, builder=Builder(whole.builder.config))
    with pytest.raises(Interrupted):
        local.run(experiment, tmp_path, reporter=StopAt(1, signal.SIGTERM))
    before = Store(tmp_path / "checkpoints").newest(pytest.fail).counters["learner_steps"]
    assert 0 < before < local.run(experiment, tmp_path, resume=True).learner_steps


def test_a_replay_that_is_not_kept_is_filled_anew(tiny, tmp_path):
    recipe = tiny(checkpointing={"replay": "never"})
    with pytest.raises(Interrupted):
        run(recipe, tmp_path, reporter=StopAt(2, signal.SIGTERM))
    checkpoint = Store(tmp_path / "checkpoints").newest(pytest.fail)
    assert checkpoint.parts == ("learner", "actor")
    result = run(recipe, tmp_path, resume=True)
    assert 198 < result.actor_steps <= 200


def test_a_complete_run_takes_a_larger_budget_only(tiny, tmp_path):
    run(tiny(), tmp_path)
    with pytest.raises(RequestError, match=r"complete.*more with --steps"):
        run(tiny(), tmp_path, resume=True)
    result = run(tiny(steps=300), tmp_path, resume=True)
    assert 298 < result.actor_steps <= 300
    assert result.evaluation[-1]["actor_steps"] == result.actor_steps
    assert json.loads((tmp_path / "config.json").read_text())["steps"] == 300


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "a run with seed 0; this one has 1"),
        ({"env": "Acrobot-v1"}, "a run with env 'CartPole-v1'; this one has 'Acrobot-v1'"),
        ({"config": {"hidden_sizes": "16"}}, r"config\.hidden_sizes \[8\]; this one has \[16\]"),
        ({"agent": "ppo"}, "a run with agent 'dqn'; this one has 'ppo'"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tiny, tmp_path, change, message):
    with pytest.raises(Interrupted):
        run(tiny(), tmp_path, reporter=StopAt(1, signal.SIGTERM))
    recipe = tiny(**change)
    if change.get("agent") == "ppo":
        recipe = type(recipe)(agent="ppo", env=recipe.env, config={})
    with pytest.raises(RequestError, match=message):
        local.run(recipe.experiment(), tmp_path, resume=True)


def test_a_damaged_checkpoint_is_passed_over(tiny, tmp_path):
    recipe = tiny(checkpointing={"every_steps": 50})
    with pytest.raises(Interrupted):
        run(recipe, tmp_path, reporter=StopAt(2, signal.SIGTERM))
    older, newer = Store(tmp_path / "checkpoints").paths()
    os.truncate(newer / "learner.npz", 50)
    reporter = Lines()
    result = run(recipe, tmp_path, resume=True, reporter=reporter)
    assert "checkpoint-" in reporter.lines[0]
    assert "damaged" in reporter.lines[0]
    assert older.name in reporter.lines[1]
    steps = [row["actor_steps"] for row in metrics.read(tmp_path / "metrics.jsonl")]
    assert steps == sorted(steps), "rows past the checkpoint must be dropped"
    assert result.actor_steps >= 200


def test_nothing_but_damaged_checkpoints_is_a_failure(tiny, tmp_path):
    with pytest.raises(Interrupted):
        run(tiny(), tmp_path, reporter=StopAt(1, signal.SIGTERM))
    for path in Store(tmp_path / "checkpoints").paths():
        (path / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="all checkpoints"):
        run(tiny(), tmp_path, resume=True)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            environments.InvalidRewardError("CartPole-v1: the reward of step 3 is nan"),
            r"failed at 90 actor steps: CartPole-v1: the reward of step 3 is nan; a checkpoint",
        ),
        (OSError("the simulator is gone"), "OSError: the simulator is gone; a checkpoint was"),
    ],
)
def test_an_environment_that_fails_loses_nothing(tiny, tmp_path, error, message):
    recipe = tiny(env="fake/discrete")

    def mistake():
        raise error

    experiment = mistaken(recipe, mistake)
    with pytest.raises(RunError, match=message):
        local.run(experiment, tmp_path)
    checkpoint = Store(tmp_path / "checkpoints").newest(pytest.fail)
    assert checkpoint.counters["actor_steps"] == 90
    result = run(recipe, tmp_path, resume=True)
    assert 198 < result.actor_steps <= 200


def test_a_reward_of_an_environment_of_the_users_own_is_looked_at(tiny, tmp_path):
    class Careless(environments.fakes.Fake):
        def step(self, action):
            timestep = super().step(action)
            return timestep if timestep.first() else timestep._replace(reward=np.float32("nan"))

    def factory(*, seed, num_envs, evaluation):
        spec = environments.make_spec(environments.fakes.discrete(seed=0))
        return environments.Vector([Careless(spec, seed=seed + i) for i in range(num_envs)])

    experiment = tiny().experiment()
    object.__setattr__(experiment, "environment_factory", factory)
    with pytest.raises(RunError, match="environment 0 of 2: Careless: reward nan; rewards must be"):
        local.run(experiment, tmp_path)


def test_a_target_is_judged_by_the_final_evaluation(tiny, tmp_path):
    for name, target in (("met", 1.0), ("missed", 1e9)):
        result = run(tiny(evaluation={"target_return": target}), tmp_path / name)
        assert result.reached is (name == "met")
    assert run(tiny(), tmp_path / "none").reached is None


def test_a_wrong_request_leaves_no_directory(tiny, tmp_path):
    with pytest.raises(ValueError, match="dqn"):
        run(tiny(env="Pendulum-v1"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
