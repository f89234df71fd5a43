"""The loop counts what happened, step by step, and keeps to the pace."""

import math
import types

import numpy as np
import pytest

from troupe import environments
from troupe.environments import fakes
from troupe.launch.local.loop import CatchUp, Loop
from troupe.launch.signals import Stop

LENGTHS = ((3, 1, 7), (5,), (2, 2, 4))


def vector():
    spec = environments.make_spec(fakes.discrete(seed=0))
    return environments.Vector(
        [fakes.Fake(spec, seed=i, episode_lengths=lengths) for i, lengths in enumerate(LENGTHS)]
    )


class Recorder:
    """An actor that always does the same and keeps what it saw."""

    def __init__(self):
        self.rewards, self.kinds, self.updates = [], [], 0

    def select_action(self, observation):
        return np.zeros(len(LENGTHS), np.int32)

    def observe_first(self, timestep):
        self.kinds.append(timestep.step_type)

    def observe(self, action, timestep):
        self.rewards.append(timestep.reward)
        self.kinds.append(timestep.step_type)

    def update(self):
        self.updates += 1


class Tank:
    """A replay of `batches` that can be drawn, more with every look; and its learner."""

    def __init__(self, per_look=0, samples_per_insert=1.0):
        self.spec = types.SimpleNamespace(is_bounded=samples_per_insert is not None)
        self.batches, self.per_look, self.steps, self.fresh = 0, per_look, 0, True

    def can_sample(self, num_batches):
        if self.fresh:
            self.batches += self.per_look
        self.fresh = self.batches < num_batches
        return not self.fresh

    def step(self):
        self.batches -= 2
        self.steps += 1


def make(tank=None, **counts):
    actor, tank = Recorder(), tank or Tank()
    return Loop(vector(), actor, CatchUp(tank.step, tank, 2), **counts), actor, tank


def expected_episodes(num_vector_steps):
    """(step, environment, return, length) of the episodes that end, each environment alone."""
    found, actions = [], 0
    for i, environment in enumerate(vector().environments):
        environment.reset()
        total, length = 0.0, 0
        for step in range(num_vector_steps):
            timestep = environment.step(0)
            if timestep.first():
                continue
            actions += 1
            total, length = total + float(timestep.reward), length + 1
            if timestep.last():
                found.append((step, i, total, length))
                total, length = 0.0, 0
    return sorted(found), actions


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_counts_are_those_of_each_environment_alone(piece):
    loop, actor, _ = make()
    while loop.actor_steps < 150:
        loop.advance(min(150, loop.actor_steps + piece), math.inf, Stop())
    episodes, actions = expected_episodes(len(actor.rewards))
    assert loop.actor_steps == actions
    assert 150 <= loop.actor_steps < 150 + len(LENGTHS)
    assert loop.episodes == len(episodes)
    assert [one.length for one in loop.finished] == [length for *_, length in episodes]
    np.testing.assert_allclose(
        [one.total for one in loop.finished], [total for _, _, total, _ in episodes]
    )


def test_counting_goes_on_from_where_it_was():
    loop, _, _ = make(actor_steps=1000, episodes=7)
    loop.advance(1100, math.inf, Stop())
    assert 1100 <= loop.actor_steps < 1100 + len(LENGTHS)
    assert loop.episodes > 7


def test_a_spent_budget_takes_no_step():
    loop, actor, _ = make(actor_steps=10)
    loop.advance(10, math.inf, Stop())
    assert not actor.rewards


def test_a_stop_ends_it_before_the_next_step():
    loop, actor, _ = make()
    stop = Stop()
    stop.request(2)
    loop.advance(100, math.inf, stop)
    assert not actor.rewards


def test_a_deadline_that_has_passed_leaves_one_step():
    loop, actor, _ = make()
    loop.advance(100, -math.inf, Stop())
    assert len(actor.rewards) == 1


def test_an_environment_that_fails_loses_no_count():
    loop, actor, _ = make()
    fail_at = 5

    def observe(action, timestep):
        actor.rewards.append(timestep.reward)
        if len(actor.rewards) == fail_at:
            raise RuntimeError("on purpose")

    actor.observe = observe
    loop = Loop(vector(), actor, lambda: False)
    with pytest.raises(RuntimeError):
        loop.advance(100, math.inf, Stop())
    assert loop.actor_steps == expected_episodes(fail_at - 1)[1]


def test_the_learner_catches_up_after_every_step():
    tank = Tank(per_look=5)
    loop, actor, _ = make(tank)
    loop.advance(30, math.inf, Stop())
    # Dispatches of two batches: of five a step, one is left over every other time.
    assert tank.steps == 5 * len(actor.rewards) // 2
    assert actor.updates == len(actor.rewards)


def test_without_a_pace_the_learner_steps_once_a_step():
    tank = Tank(per_look=1000, samples_per_insert=None)
    loop, actor, _ = make(tank)
    loop.advance(30, math.inf, Stop())
    assert tank.steps == len(actor.rewards)
