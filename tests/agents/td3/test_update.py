"""TD3: when its policy and its targets move, one step at a time and several together."""

import jax
import numpy as np
import pytest

from troupe.agents.programs import dispatch
from troupe.agents.td3 import TD3Builder, TD3Config

from .. import pendulum


def make_update(**config):
    return pendulum.make(TD3Builder(TD3Config(hidden_sizes=(8,), **config)))[1]


def same(before, after):
    return all(map(np.array_equal, jax.tree.leaves(before), jax.tree.leaves(after)))


def test_the_policy_waits_for_its_turn_and_targets_move_with_it():
    update = make_update(target_update_period=3, target_update_rate=0.25)
    state, step = update.init(jax.random.key(1)), jax.jit(update.step)
    for count in range(1, 8):
        before = state.learned
        state, _ = step(state, pendulum.sample(seed=count))
        after = state.learned
        assert not same(before.params.critic, after.params.critic)
        assert same(before.params.policy, after.params.policy) == (count % 3 != 0)
        assert same(before.optimizers.policy, after.optimizers.policy) == (count % 3 != 0)
        part = 0.25 if count % 3 == 0 else 0.0
        jax.tree.map(
            lambda target, old, new, part=part: np.testing.assert_allclose(
                target, part * new + (1 - part) * old, rtol=1e-5, atol=1e-6
            ),
            after.targets,
            before.targets,
            after.params,
        )


@pytest.mark.parametrize(("num_steps", "period"), [(6, 2), (4, 4), (3, 1), (5, 2)])
def test_steps_in_blocks_are_steps_in_turn(num_steps, period):
    update = make_update(target_update_period=period, learning_rate=0.01)
    several = [pendulum.sample(seed=seed) for seed in range(num_steps)]
    batches = jax.tree.map(lambda *x: np.stack(x), *several)
    in_turn = jax.jit(dispatch.fuse(update.step, num_steps))
    in_blocks = jax.jit(update.steps(num_steps))
    expected = actual = update.init(jax.random.key(0))
    for _ in range(2 * period):
        expected, expected_output = in_turn(expected, batches)
        actual, output = in_blocks(actual, batches)
    state = lambda found: (found.learned, found.steps)  # noqa: E731
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
        (state(actual), output),
        (state(expected), expected_output),
    )
