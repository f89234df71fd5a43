"""What other frameworks got wrong in silence, one test each: here, in one process."""

import json
import math
import shutil
import signal
import types

import numpy as np
import pytest
import tree

from troupe import environments
from troupe.environments import fakes
from troupe.launch.errors import Interrupted, RunError
from troupe.launch.files.checkpoints import Store
from troupe.launch.local import components
from troupe.launch.local import run as local
from troupe.launch.local.loop import Loop
from troupe.launch.logging import metrics
from troupe.launch.logging.report import Reporter
from troupe.launch.signals import Stop
from troupe.launch.specification.recipe import Recipe


def run(recipe, out, **options):
    return local.run(recipe.experiment(), out, request=recipe.to_json(), **options)


class StopAtFirstEvaluation(Reporter):
    """Stops a run as a signal would."""

    def line(self, text):
        if text.startswith("evaluation"):
            signal.raise_signal(signal.SIGTERM)


def stopped(recipe, out):
    with pytest.raises(Interrupted):
        run(recipe, out, reporter=StopAtFirstEvaluation())


def saved_steps(out):
    """Actor steps of every checkpoint, the oldest first."""
    return [
        json.loads((path / "manifest.json").read_text())["counters"]["actor_steps"]
        for path in Store(out / "checkpoints").paths()
    ]


def test_the_configured_period_of_checkpoints_counts(tiny, tmp_path):
    """A period that is hard-coded somewhere, so that the configured one is ignored."""
    result = run(tiny(checkpointing={"every_steps": 50, "keep": 100}), tmp_path / "steps")
    periods = np.diff([0, *saved_steps(tmp_path / "steps")])
    # Two environments step together; the end always has one of its own.
    assert np.isin(periods[:3], (50, 51)).all()
    assert sum(periods) == result.actor_steps
    run(tiny(), tmp_path / "minute")
    assert len(saved_steps(tmp_path / "minute")) == 1
    run(tiny(checkpointing={"every_seconds": 1e-6, "keep": 1000}), tmp_path / "always")
    # How many depends on how long each takes to write; the end alone would be one.
    assert len(saved_steps(tmp_path / "always")) > 1


def test_a_rerun_finds_the_checkpoints(tiny, tmp_path):
    """Paths with a time stamp in them, which no later process asks for."""
    for name in ("first", "second"):
        stopped(tiny(), tmp_path / name)
    names = [
        sorted(str(path.relative_to(out)) for path in out.joinpath("checkpoints").rglob("*"))
        for out in (tmp_path / "first", tmp_path / "second")
    ]
    assert names[0] == names[1] != []
    (before,) = saved_steps(tmp_path / "first")
    run(tiny(), tmp_path / "first", resume=True)
    rows = [row["actor_steps"] for row in metrics.read(tmp_path / "first" / "metrics.jsonl")]
    assert rows == sorted(rows)
    assert before in rows


def test_the_replay_is_kept_where_the_run_is(tiny, tmp_path):
    """Replay in a temporary directory, which is not there when the run goes on elsewhere."""
    stopped(tiny(), tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    experiment = tiny().experiment()
    with components.make_environment(experiment, 1) as environment:
        made = components.make(experiment, environment)
        checkpoint = Store(tmp_path / "there" / "checkpoints").newest(pytest.fail)
        local.saver.restore(checkpoint, made, pytest.fail)
        lost = checkpoint.counters["actor_steps"] - made.replay.inserted
        assert 0 <= lost <= environment.num_envs
    run(tiny(), tmp_path / "there", resume=True)


def test_a_chance_of_zero_is_a_chance_of_zero(tiny):
    """Greedy evaluation is asked for by 0, which was taken for "not set"."""
    config = {"epsilon_start": 1.0, "epsilon_end": 1.0, "evaluation_epsilon": 0.0}
    experiment = tiny(config=config).experiment()
    with components.make_environment(experiment, 0) as environment:
        made = components.make(experiment, environment)
        actor = made.evaluator._actor(8)
        observations = np.random.default_rng(0).normal(size=(50, 8, 4)).astype(np.float32)
        networks = experiment.make_networks(made.spec)
        (params,) = made.learner.get_variables(["policy"])
        for observation in observations:
            greedy = np.argmax(networks.apply(params, observation), axis=-1)
            np.testing.assert_array_equal(actor.select_action(observation), greedy)


def test_training_and_evaluation_have_environments_of_their_own(tiny):
    """Evaluation in the environment of training, whose episode it ends and whose stream it uses."""
    asked, made_environments = [], []
    recipe = tiny()

    def factory(**arguments):
        asked.append(types.SimpleNamespace(**arguments))
        made_environments.append(recipe.make_environment(**arguments))
        return made_environments[-1]

    experiment = recipe.experiment()
    object.__setattr__(experiment, "environment_factory", factory)
    with components.make_environment(experiment, 0) as environment:
        made = components.make(experiment, environment)
        made.evaluator.run(0, 3, 0, Stop())
        made.evaluator.run(1, 3, 0, Stop())
    assert [one.evaluation for one in asked] == [False, True, True]
    assert len({one.seed for one in asked}) == 3
    assert len({id(one) for vector in made_environments for one in vector.environments}) == 2 + 6


@pytest.mark.parametrize(
    ("id", "package"),
    [
        ("CartPole-v1", "gymnasium"),
        ("HalfCheetah-v5", "mujoco"),
        ("ALE/Pong-v5", "ale_py"),
        pytest.param("dm_control/cartpole-swingup", "dm_control", marks=pytest.mark.distributed),
        ("bsuite/catch/0", "bsuite"),
        ("fake/ragged", "troupe"),
    ],
)
def test_every_factory_of_environments_uses_its_seed(id, package):
    """Factories that take a seed and leave it aside, so that no two runs are alike."""
    pytest.importorskip(package)
    recipe = Recipe("dqn", id)

    def episodes(seed, evaluation=False):
        with recipe.make_environment(seed=seed, num_envs=2, evaluation=evaluation) as vector:
            seen = [vector.reset()]
            action = tree.map_structure(
                lambda spec: np.stack([spec.generate_value()] * 2), vector.action_spec()
            )
            seen += [vector.step(action) for _ in range(20)]
        observations = tree.map_structure(lambda *rows: np.stack(rows), *seen).observation
        return [
            [np.asarray(leaf)[:, i].tobytes() for leaf in tree.flatten(observations)]
            for i in range(2)
        ]

    first = episodes(3)
    assert first == episodes(3) == episodes(3, evaluation=True)
    assert first[0] != first[1]
    assert all(row not in first for row in episodes(4))


def test_a_run_ends_with_its_learner(tiny, tmp_path):
    """Acting on for ever with a learner that is dead."""
    recipe = tiny()
    experiment = recipe.experiment()
    make_learner = experiment.builder.make_learner

    def make_mortal(*arguments, **options):
        learner = make_learner(*arguments, **options)
        step = learner.step

        def step_until_ten():
            if learner.steps >= 10:
                raise RuntimeError("out of memory on the device")
            step()

        learner.step = step_until_ten
        return learner

    object.__setattr__(experiment.builder, "make_learner", make_mortal)
    with pytest.raises(RunError, match=r"failed at \d+ actor steps: .*out of memory on the device"):
        local.run(experiment, tmp_path)
    assert not (tmp_path / "result.json").exists()
    (steps,) = saved_steps(tmp_path)
    assert steps < 50


@pytest.mark.parametrize("min_replay_size", [16, 120])
def test_gradient_steps_follow_from_samples_per_insert(tiny, tmp_path, min_replay_size):
    """A ratio of items that is read as one of gradient steps, or missed by a tenth of the least
    replay."""
    config = {"min_replay_size": min_replay_size, "samples_per_insert": 4.0}
    result = run(tiny(config=config), tmp_path)
    due = (result.actor_steps - min_replay_size) * 4.0 / 4  # Batches of four.
    # Lots of two gradient steps; a step that starts an episode inserts nothing.
    assert due - 4 <= result.learner_steps <= due


def test_steps_count_before_their_episode_ends():
    """Counters that only an episode's end brings up to date."""

    class Idle:
        def select_action(self, observation):
            return np.zeros(2, np.int32)

        def observe_first(self, timestep):
            pass

        def observe(self, action, timestep):
            pass

        def update(self, wait=False):
            pass

    endless = environments.Vector(
        [fakes.discrete(seed=seed, episode_lengths=(10**6,)) for seed in range(2)]
    )
    loop = Loop(endless, Idle(), lambda: False)
    for until in (10, 12, 400):
        loop.advance(until, math.inf, Stop())
        assert (loop.actor_steps, loop.episodes) == (until, 0)
