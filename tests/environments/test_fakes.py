"""Fakes: what they give fits the specs, repeats with the seed, and ends when it is told to."""

import time

import numpy as np
import pytest
import tree

from troupe import environments
from troupe.environments import fakes


def lengths(environment, episodes):
    """(steps, discount at the end) of each episode."""
    action = tree.map_structure(lambda spec: spec.generate_value(), environment.action_spec())
    ends = []
    for _ in range(episodes):
        timestep, steps = environment.reset(), 0
        while not timestep.last():
            timestep = environment.step(action)
            steps += 1
        ends.append((steps, float(timestep.discount)))
    return ends


@pytest.mark.parametrize("name", sorted(fakes.FAKES))
def test_a_seed_repeats_a_fake(name):
    def flat(seed):
        environment = environments.make(f"fake/{name}", seed=seed)
        spec = environment.action_spec()
        action = tree.map_structure(lambda leaf: leaf.generate_value(), spec)
        steps = [environment.step(action) for _ in range(30)]
        return [np.asarray(leaf).tobytes() for leaf in tree.flatten(steps)]

    assert flat(1) == flat(1)
    assert flat(1) != flat(2)


def test_episodes_have_the_lengths_and_ends_asked_for():
    environment = fakes.discrete(seed=0, episode_lengths=(2, 5, 1), truncated=(False, True))
    assert lengths(environment, 5) == [(2, 0.0), (5, 1.0), (1, 0.0), (2, 1.0), (5, 0.0)]


def test_ragged_episodes_vary_in_both():
    ends = lengths(fakes.ragged(seed=0, longest=6), 32)
    assert {steps for steps, _ in ends} == set(range(1, 7))
    assert {discount for _, discount in ends} == {0.0, 1.0}


@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1", "ALE/Pong-v5", "Blackjack-v1"])
def test_a_fake_of_a_real_environment_has_its_specs(id):
    with environments.make(id, seed=0) as real:
        spec = environments.make_spec(real)
    fake = fakes.from_spec(spec, seed=0)
    assert environments.make_spec(fake) == spec
    timestep = fake.reset()
    tree.map_structure(lambda s, v: s.validate(v), spec.observations, timestep.observation)


@pytest.mark.parametrize(
    ("make", "action"),
    [
        (fakes.discrete, 3),
        (fakes.discrete, 0.5),
        (fakes.discrete, [0]),
        (fakes.continuous, [0.0, 1.5]),
        (fakes.continuous, [0.0]),
        (fakes.continuous, [0.0, np.nan]),
        (fakes.nested, 0),
        (fakes.nested, {"push": [0.0, 0.0], "choice": 4}),
        (fakes.Match, 4),
    ],
)
def test_actions_that_do_not_fit_are_refused(make, action):
    environment = make(seed=0)
    environment.reset()
    with pytest.raises(environments.InvalidActionError, match="action") as caught:
        environment.step(action)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"episode_lengths": ()}, {"episode_lengths": (0,)}, {"truncated": ()}, {"step_ms": -1}],
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(environments.InvalidOptionError, match="episode_lengths"):
        fakes.discrete(seed=0, **options)


def test_a_step_takes_the_time_asked_for():
    environment = fakes.discrete(seed=0, step_ms=5)
    environment.reset()
    start = time.perf_counter()
    for _ in range(4):
        environment.step(0)
    assert time.perf_counter() - start >= 0.02


@pytest.mark.parametrize("continuous", [False, True])
def test_the_best_return_of_a_match_is_its_length(continuous):
    environment = fakes.Match(seed=0, continuous=continuous, length=9)
    places = np.linspace(-1, 1, 4, dtype=np.float32)
    timestep, total = environment.reset(), 0.0
    while not timestep.last():
        shown = int(timestep.observation.argmax())
        timestep = environment.step(places[[shown]] if continuous else shown)
        total += timestep.reward
    assert total == pytest.approx(9, abs=1e-5)
    wrong = environment.step(0) and environment.step(places[[0]] if continuous else 0)
    assert wrong.reward <= 1


def test_fakes_take_the_options_of_every_environment():
    clipped = environments.make("fake/continuous", seed=0, actions="clip", reward_clip=0.1)
    clipped.reset()
    assert abs(clipped.step(np.float32([9, -9])).reward) <= np.float32(0.1)
    with pytest.raises(environments.InvalidOptionError, match="fake/discrete"):
        environments.make("fake/discrete", seed=0, speed=3)
    with pytest.raises(environments.UnknownEnvironmentError, match="fake/discrete"):
        environments.make("fake/discret", seed=0)
