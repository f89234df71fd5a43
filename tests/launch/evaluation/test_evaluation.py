"""Evaluations count whole episodes, repeat exactly, and leave training alone."""

import numpy as np
import pytest

from troupe import environments
from troupe.environments import fakes
from troupe.launch.evaluation.evaluator import Outcome, play
from troupe.launch.local import components
from troupe.launch.signals import Stop


class Idle:
    def select_action(self, observation):
        return np.zeros(len(observation), np.int32)

    def observe_first(self, timestep):
        pass

    def observe(self, action, timestep):
        pass


def vector(num_envs):
    spec = environments.make_spec(fakes.discrete(seed=0))
    spec = spec._replace(rewards=fakes.specs.BoundedArray((), "float32", 1.0, 1.0))
    # Environment i has episodes of i + 1 steps, each with a reward of 1.
    return environments.Vector(
        [fakes.Fake(spec, seed=i, episode_lengths=(i + 1,)) for i in range(num_envs)]
    )


@pytest.mark.parametrize(
    ("num_envs", "episodes", "expected"),
    [(1, 3, [1, 1, 1]), (3, 3, [1, 2, 3]), (3, 7, [1, 2, 3, 1, 2, 3, 1]), (4, 4, [1, 2, 3, 4])],
)
def test_short_episodes_count_no_more_than_long_ones(num_envs, episodes, expected):
    assert play(vector(num_envs), Idle(), episodes).returns == expected


def test_a_stopped_evaluation_has_no_outcome():
    stop = Stop()
    stop.request(2)
    assert play(vector(2), Idle(), 4, stop) is None


def test_every_time_step_is_watched():
    frames = []
    play(vector(1), Idle(), 3, watch=lambda: frames.append(1))
    # FIRST and LAST of each of the three episodes.
    assert len(frames) == 6


def test_a_summary_is_of_the_returns():
    summary = Outcome(7, (1.0, 2.0, 6.0), 5).summary()
    counts = {"actor_steps": 7, "learner_steps": 5, "episodes": 3}
    expected = {**counts, "mean": 3.0, "min": 1.0, "max": 6.0}
    assert summary.pop("std") == pytest.approx(14**0.5 / 3**0.5)
    assert summary == expected


def test_an_evaluation_repeats_exactly_and_others_differ(tiny):
    experiment = tiny(env="fake/ragged").experiment()
    with components.make_environment(experiment, 0) as environment:
        made = components.make(experiment, environment)
        first, second = (made.evaluator.run(k, 6, 0, Stop()).returns for k in (0, 1))
        assert made.evaluator.run(0, 6, 0, Stop()).returns == first != second
        assert len(first) == 6


def test_what_was_compiled_before_changes_no_evaluation(tiny):
    experiment = tiny(env="fake/ragged").experiment()
    with components.make_environment(experiment, 0) as environment:
        episodes = experiment.evaluation.episodes
        expected = components.make(experiment, environment).evaluator.run(0, episodes, 0, Stop())
        made = components.make(experiment, environment)
        made.evaluator.warm_up()
        assert made.evaluator.run(0, episodes, 0, Stop()) == expected
        assert len(made.evaluator._actors) == 1
