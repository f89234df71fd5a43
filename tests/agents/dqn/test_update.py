"""DQN's steps in blocks are its steps in turn, the target network's updates included."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe import environments
from troupe.agents.dqn import DQNBuilder, DQNConfig
from troupe.agents.programs import dispatch
from troupe.agents.replay.items import Sample, SampleInfo, Transition
from troupe.agents.snapshots import to_host
from troupe.environments import make_spec

BATCH = 4
VARIANTS = {
    "plain": {"double": False},
    "double, squared, unclipped": {"loss": "squared", "max_gradient_norm": None},
    "prioritised": {"priority_exponent": 0.6, "importance_exponent_steps": 10},
    "averaged target": {"target_update_rate": 0.3},
}
FAMILY = {
    "categorical": {"distribution": "categorical", "num_atoms": 5, "double": False},
    "noisy": {"noisy_std": 0.5},
    "quantile, munchausen": {
        **{"distribution": "quantile", "num_atoms": 4, "double": False},
        **{"munchausen_scale": 0.9, "munchausen_temperature": 0.5},
    },
}


def samples(num_steps, seed=0):
    rng = np.random.default_rng(seed)
    shape = (num_steps, BATCH)
    numbers = lambda *last: rng.normal(size=(*shape, *last)).astype(np.float32)  # noqa: E731
    info = SampleInfo(
        np.zeros(shape, np.int64),
        rng.uniform(0.1, 1, shape).astype(np.float32),
        np.full(shape, 50, np.float32),
    )
    actions = rng.integers(0, 2, shape).astype(np.int32)
    discount = rng.integers(0, 2, shape).astype(np.float32)
    return Sample(info, Transition(numbers(4), actions, numbers(), discount, numbers(4)))


def make_update(**config):
    builder = DQNBuilder(DQNConfig(hidden_sizes=(8,), **{"learning_rate": 0.05, **config}))
    environment = environments.make("CartPole-v1", seed=0)
    spec = make_spec(environment)
    environment.close()
    return builder.make_update(builder.make_networks(spec), spec)


def assert_alike(actual, expected):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6),
        *map(to_host, (actual, expected)),
    )


SIZES = [(12, 4), (4, 12), (6, 4), (5, 3), (3, 1), (8, 8)]
# Blocks are cut by the same code whatever the loss: one variant has all sizes, those that learn
# otherwise two, of which one has blocks that end within a period.
CASES = [
    *(("plain", *size) for size in SIZES),
    *((variant, *size) for variant in VARIANTS if variant != "plain" for size in SIZES[1:3]),
    *((variant, *SIZES[2]) for variant in FAMILY),
]


@pytest.mark.parametrize(("variant", "num_steps", "period"), CASES)
def test_steps_in_blocks_are_steps_in_turn(variant, num_steps, period):
    update = make_update(target_update_period=period, **(VARIANTS | FAMILY)[variant])
    in_turn = jax.jit(dispatch.fuse(update.step, num_steps))
    in_blocks = jax.jit(update.steps(num_steps))
    expected = actual = update.init(jax.random.key(0))
    for seed in range(3):
        expected, expected_output = in_turn(expected, samples(num_steps, seed))
        actual, output = in_blocks(actual, samples(num_steps, seed))
        assert_alike(actual, expected)
        assert_alike(output, expected_output)


def test_the_target_moves_with_its_period_and_no_sooner():
    update = make_update(target_update_period=6)
    state = update.init(jax.random.key(0))
    initial, step = state.params, jax.jit(update.step)
    one = jax.tree.map(lambda x: x[0], samples(1))
    for count in range(1, 13):
        before = state.target_params
        state, _ = step(state, one)
        kept = jax.tree.map(lambda x, y: bool(jnp.array_equal(x, y)), state.target_params, before)
        assert all(jax.tree.leaves(kept)) == (count % 6 != 0)
        if count == 5:
            assert_alike(state.target_params, initial)
        if count == 6:
            assert_alike(state.target_params, state.params)


def test_a_lot_that_begins_between_two_turns_misses_none():
    """Such as after resuming a run that took its steps one by one."""
    update = make_update(target_update_period=4)
    state = update.init(jax.random.key(0))
    state, _ = jax.jit(update.steps(2))(state, samples(2))
    before = state.target_params
    state, _ = jax.jit(update.steps(4))(state, samples(4))
    assert int(state.steps) == 6
    assert not np.array_equal(jax.tree.leaves(state.target_params)[-1], jax.tree.leaves(before)[-1])


def test_munchausen_of_no_scale_at_no_temperature_is_q_learning():
    plain, soft = (
        make_update(double=False, **more)
        for more in ({}, {"munchausen_scale": 0.0, "munchausen_temperature": 1e-5})
    )
    state = plain.init(jax.random.key(0))
    one = jax.tree.map(lambda x: x[0], samples(1))
    assert_alike(soft.step(state, one)[0], plain.step(state, one)[0])


def test_every_step_has_noise_of_its_own_that_follows_from_the_seed():
    update = make_update(noisy_std=0.5, learning_rate=0.0, double=False)
    step = jax.jit(update.step)
    state = update.init(jax.random.key(0))
    one = jax.tree.map(lambda x: x[0], samples(1))
    losses = []
    for _ in range(3):
        state, output = step(state, one)
        losses.append(float(output.metrics["loss"]))
    assert len({*losses}) == 3
    again, _ = step(update.init(jax.random.key(0)), one)
    state = step(again, one)[0]
    assert float(step(state, one)[1].metrics["loss"]) == losses[2]


def test_noise_is_for_exploration_and_not_for_evaluation():
    builder = DQNBuilder(DQNConfig(hidden_sizes=(8,), noisy_std=9.0, epsilon_start=0.0))
    builder = DQNBuilder(dataclasses.replace(builder.config, epsilon_end=0.0))
    with environments.make("fake/discrete", seed=0) as environment:
        spec = make_spec(environment)
    networks = builder.make_networks(spec)
    params = networks.init(jax.random.key(0))
    observation = jax.tree.map(lambda s: jnp.ones(s.shape, s.dtype), spec.observations)

    def actions(seed, **which):
        core = builder.make_policy(networks, spec, **which)
        state, chosen = core.init(jax.random.key(seed)), []
        for _ in range(20):
            action, state = core.select_action(params, observation, state)
            chosen.append(int(action))
        return chosen

    assert len({*actions(0)}) > 1
    assert actions(0) == actions(0) != actions(1)
    assert len({*actions(0, evaluation=True), *actions(1, evaluation=True)}) == 1
