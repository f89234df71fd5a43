"""The losses give what one computes by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.losses import masks, policy, priorities, returns, values


def f(*values):
    return jnp.asarray(values, jnp.float32)


def test_q_learning_error_by_hand():
    # The target's own best action is 1 (worth 5): 1 + 0.5 * 5 - 2.
    error = values.q_learning_error(
        f(2, 3), jnp.int32(0), f(1)[0], f(0.5)[0], q_t_target=f(4, 5), q_t_selector=f(4, 5)
    )
    assert float(error) == pytest.approx(1.5)
    # The online network prefers action 0, which the target holds for 4: 1 + 0.5 * 4 - 2.
    error = values.q_learning_error(
        f(2, 3), jnp.int32(0), f(1)[0], f(0.5)[0], q_t_target=f(4, 5), q_t_selector=f(9, 8)
    )
    assert float(error) == pytest.approx(1.0)


def test_no_gradient_through_the_target():
    def total(q_tm1, q_t):
        return values.q_learning_error(q_tm1, jnp.int32(1), f(1)[0], f(0.9)[0], q_t, q_t)

    of_estimate, of_target = jax.grad(total, argnums=(0, 1))(f(1, 2), f(3, 4))
    np.testing.assert_array_equal(of_estimate, [0, -1])
    np.testing.assert_array_equal(of_target, [0, 0])


def test_terminal_transition_has_no_bootstrap():
    error = values.q_learning_error(f(2, 3), jnp.int32(1), f(-1)[0], f(0)[0], f(100, 9), f(100, 9))
    assert float(error) == -4.0


def test_huber_by_hand():
    np.testing.assert_allclose(
        values.huber(f(0, 0.5, -1, 3, -3), 1.0), [0, 0.125, 0.5, 2.5, 2.5], rtol=1e-6
    )
    np.testing.assert_allclose(values.huber(f(3), 2.0), [4.0])


def test_importance_weights_by_hand():
    weights = priorities.importance_weights(f(0.5, 0.25, 0.25), f(4, 4, 4), f(1)[0])
    np.testing.assert_allclose(weights, [0.5, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(
        priorities.importance_weights(f(0.5, 0.1), f(4, 4), f(0)[0]), [1, 1], rtol=1e-6
    )


def test_advantages_by_hand():
    # delta = (1 + .5*2 - 1, 1 + .5*4 - 2) = (1, 1); A_1 = 1, A_0 = 1 + .5*.5*1.
    advantages = returns.generalized_advantages(f(1, 1), f(0.5, 0.5), f(1, 2, 4), f(1, 1), 0.5)
    np.testing.assert_allclose(advantages, [1.25, 1.0])


def test_advantages_stop_at_the_last_row_of_an_episode():
    # Row 1 is a last observation: row 0 bootstraps from its value, nothing comes from row 2.
    rewards, estimates, is_step = f(1, 0, 7), f(1, 2, 3, 4), f(1, 0, 1)
    truncated = returns.generalized_advantages(rewards, f(0.5, 0.5, 0.5), estimates, is_step, 0.9)
    np.testing.assert_allclose(truncated, [1.0, 0.0, 6.0])
    terminated = returns.generalized_advantages(rewards, f(0.0, 0.5, 0.5), estimates, is_step, 0.9)
    np.testing.assert_allclose(terminated, [0.0, 0.0, 6.0])


def test_clipped_surrogate_by_hand():
    loss = policy.clipped_surrogate(jnp.log(f(2, 2, 0.5, 0.5)), jnp.zeros(4), f(1, -1, 1, -1), 0.2)
    np.testing.assert_allclose(loss, [-1.2, 2.0, -0.5, 0.8], rtol=1e-6)


def test_normalize_looks_only_where_the_mask_is_one():
    x = masks.normalize(f(1, 3, 1000), f(1, 1, 0))
    np.testing.assert_allclose(x[:2], [-1, 1], rtol=1e-5)
    assert float(masks.mean(f(1, 3), f(0, 0))) == 0.0


def test_kl_estimate_is_exact_in_the_mean_and_never_negative():
    old, new = f(0.5, 0.3, 0.2), f(0.2, 0.3, 0.5)
    each = policy.kl_estimate(jnp.log(new), jnp.log(old))
    assert (np.asarray(each) >= 0).all()
    expected = float(jnp.sum(old * jnp.log(old / new)))
    assert float(jnp.sum(old * each)) == pytest.approx(expected, rel=1e-5)


def test_priorities_are_in_proportion_to_errors_and_never_nothing():
    np.testing.assert_allclose(priorities.from_errors(f(-2, 1, 0)), [2, 1, 1e-6], rtol=1e-5)


FIRST, MID, LAST = 0, 1, 2


@pytest.mark.parametrize(
    ("step_type", "seen", "burn_in", "expected"),
    [
        ([MID] * 5, 5, 2, [0, 0, 1, 1, 0]),  # What followed the last row is not known.
        ([FIRST, MID, MID, MID, MID], 5, 2, [1, 1, 1, 1, 0]),  # The state is right from the start.
        ([MID, MID, MID, LAST, LAST], 4, 1, [0, 1, 1, 0, 0]),  # Nothing follows LAST; padding.
        ([FIRST, LAST, LAST, LAST, LAST], 2, 3, [1, 0, 0, 0, 0]),  # Shorter than the burn-in.
        ([MID, LAST, MID, MID, MID], 5, 0, [1, 0, 1, 1, 0]),
    ],
)
def test_steps_learned_from(step_type, seen, burn_in, expected):
    mask = f(*(float(t < seen) for t in range(5)))
    learned = masks.learned_steps(jnp.asarray(step_type), mask, burn_in)
    np.testing.assert_array_equal(learned, expected)
