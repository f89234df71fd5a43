"""Each task of our own is, step by step, that of Gymnasium or bsuite."""

import jax
import numpy as np
import pytest

from troupe import environments
from troupe.environments import functional
from troupe.environments.functional import registry, streams
from troupe.environments.functional.hosted import keys_of

IDS = [id for id in registry.TASKS if id not in ("Catch-v0", "Nim-v0")]
STREAMS = 16


def draw(spec, random, count):
    if spec.dtype.kind == "f":
        wide = 1.5 * np.asarray(spec.maximum)  # Beyond the bounds too, as agents that clip act.
        return random.uniform(-wide, wide, (count, *spec.shape)).astype(np.float32)
    return random.integers(spec.num_values, size=count, dtype=np.int32)


def trajectory(environment, steps, seed=0):
    """States before each step, actions, and time steps after it, each with [steps, N, ...]."""
    random = np.random.default_rng(seed)
    actions = np.stack([draw(environment.actions, random, STREAMS) for _ in range(steps)])

    def step(before, action):
        after, timestep = streams.step(environment, before, action)
        return after, (before, timestep)

    begun, _ = streams.reset(environment, keys_of(range(STREAMS)))
    _, (states, timesteps) = jax.jit(lambda: jax.lax.scan(step, begun, actions))()
    return jax.tree.map(np.asarray, (states._replace(keys=()), actions, timesteps))


@pytest.mark.parametrize("id", IDS)
def test_specs_are_gymnasiums(id):
    ours, theirs = (
        environments.make_spec(environments.make(one, seed=0)) for one in (f"jax:{id}", id)
    )
    for field in ("observations", "actions"):
        mine, other = getattr(ours, field), getattr(theirs, field)
        assert (type(mine), mine.shape, mine.dtype) == (type(other), other.shape, other.dtype)
        for bound in ("minimum", "maximum"):
            limits = getattr(mine, bound), getattr(other, bound)
            np.testing.assert_allclose(*limits, rtol=1e-6)
    assert (
        environments.make(id, seed=0).max_episode_steps
        == functional.make(f"jax:{id}").max_episode_steps
    )


@pytest.mark.parametrize("id", IDS)
def test_every_step_is_gymnasiums(id):
    """From the state that ours is in; episodes would part with the first bit that differs."""
    environment = functional.make(f"jax:{id}")
    states, actions, timesteps = trajectory(environment, 1100)
    reference = environments.make(id, seed=0).unwrapped
    reference.reset(seed=0)
    some = np.random.default_rng(1).integers(timesteps.step_type.shape, size=(350, 2))
    last_steps = np.argwhere(timesteps.step_type == 2)
    assert len(last_steps) >= STREAMS
    for step, stream in [*some, *last_steps[:50]]:
        if states.over[step, stream]:
            assert timesteps.step_type[step, stream] == 0
            continue
        inner, taken = states.environments
        reference.state = np.array([leaf[step, stream] for leaf in inner], np.float64)
        if id == "CartPole-v1":
            reference.steps_beyond_terminated = None
        observation, reward, terminated, *_ = reference.step(actions[step, stream])
        found = jax.tree.map(lambda leaf, at=(step, stream): leaf[at], timesteps)
        np.testing.assert_allclose(found.observation, observation, rtol=2e-5, atol=2e-5)
        assert found.reward == pytest.approx(float(reward), rel=2e-5, abs=2e-5)
        assert found.discount == 1.0 - terminated
        last = terminated or taken[step, stream] + 1 == environment.max_episode_steps
        assert found.step_type == (2 if last else 1)


@pytest.mark.parametrize("id", IDS)
def test_episodes_begin_where_gymnasiums_do(id):
    """The observations of many first steps have the same range, mean and spread."""
    environment = functional.make(f"jax:{id}")
    _, first = streams.reset(environment, keys_of(range(2000)))
    reference = environments.make(id, seed=0)
    theirs = np.stack([reference.reset().observation for _ in range(2000)])
    for measure in (np.min, np.max, np.mean, np.std):
        ours = measure(np.asarray(first.observation), axis=0)
        spread = theirs.max(axis=0) - theirs.min(axis=0)
        np.testing.assert_array_less(np.abs(ours - measure(theirs, axis=0)), 0.05 * spread + 1e-6)


def test_every_step_of_catch_is_bsuites():
    bsuite = pytest.importorskip("bsuite.environments.catch")
    environment = functional.make("jax:Catch-v0")
    states, actions, timesteps = trajectory(environment, 40)
    seen = 0
    for stream in range(STREAMS):
        reference = bsuite.Catch(seed=0)
        reference.reset()
        for step in range(len(actions)):
            if states.over[step, stream]:
                reference.reset()
                continue
            state = jax.tree.map(lambda leaf, at=(step, stream): leaf[at], states.environments)
            reference._ball_x, reference._ball_y = int(state.column), int(state.row)
            reference._paddle_x = int(state.paddle)
            expected = reference.step(int(actions[step, stream]))
            found = jax.tree.map(lambda leaf, at=(step, stream): leaf[at], timesteps)
            np.testing.assert_array_equal(found.observation, expected.observation)
            assert found.reward == expected.reward
            assert found.discount == expected.discount
            assert found.step_type == int(expected.step_type)
            seen += found.step_type == 2
    assert seen > STREAMS


def test_arguments_are_gymnasiums():
    reference = environments.make("CartPole-v1", seed=0, sutton_barto_reward=True)
    ours = environments.make("jax:CartPole-v1", seed=0, sutton_barto_reward=True)
    for environment in (reference, ours):
        timestep, rewards = environment.reset(), []
        while not timestep.last():
            timestep = environment.step(1)
            rewards.append(float(timestep.reward))
        assert rewards[-1] == -1.0
        assert set(rewards[:-1]) == {0.0}
    heavy = functional.make("jax:Pendulum-v1", g=1000.0)
    light = functional.make("jax:Pendulum-v1")
    state, _ = light.reset(jax.random.key(0))
    speeds = [
        one.step(state, np.zeros(1), jax.random.key(1))[0][0].velocity for one in (heavy, light)
    ]
    assert abs(speeds[0]) > abs(speeds[1])
