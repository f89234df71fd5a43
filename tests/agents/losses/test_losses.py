"""The losses give what one computes by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.losses import (
    distributional,
    estimates,
    masks,
    policy,
    priorities,
    returns,
    values,
)


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


def test_a_number_is_its_two_neighbours():
    np.testing.assert_allclose(
        distributional.two_hot(jnp.float32(1.25), f(0, 1, 2)), [0, 0.75, 0.25], rtol=1e-6
    )
    np.testing.assert_allclose(distributional.two_hot(jnp.float32(-7), f(0, 1, 2)), [1, 0, 0])


def test_a_number_is_a_smoothed_histogram():
    """Shares of a normal distribution by Python's error function; the mean is the number."""
    atoms = f(*range(-5, 6))
    found = distributional.smoothed_histogram(jnp.float32(0.3), atoms, 0.75)
    below = [math.erf((edge - 0.3) / (0.75 * math.sqrt(2))) / 2 for edge in np.arange(-5.5, 6)]
    np.testing.assert_allclose(found, np.diff(below), atol=1e-6)
    assert float(found @ atoms) == pytest.approx(0.3, abs=1e-4)
    for x, outermost in ((-70.0, 0), (70.0, -1)):
        found = distributional.smoothed_histogram(jnp.float32(x), atoms, 0.75)
        assert float(jnp.sum(found)) == pytest.approx(1.0)
        assert np.argmax(found) == outermost % 11


def test_regression_by_classes():
    """Critics come to the mean of targets, whose gradient is stopped; squared errors are squared
    errors."""
    estimate = estimates.regression(11, -5.0, 5.0)
    targets = f(0.3, -2.1, 1.4, 2.8)

    def loss(logits):
        return jnp.mean(estimate.loss(jnp.broadcast_to(logits, (2, 4, 11)), targets))

    logits, gradient = jnp.zeros(11), jax.jit(jax.grad(loss))
    for _ in range(300):
        logits -= gradient(logits)
    assert float(estimate.mean(logits)) == pytest.approx(float(targets.mean()), abs=0.05)
    outputs = jnp.zeros((2, 4, 11))
    assert not jax.grad(lambda x: jnp.sum(estimate.loss(outputs, x)))(targets).any()
    squared = estimates.regression(None, 0.0, 0.0)
    np.testing.assert_allclose(squared.loss(squared.mean(f([1], [3])), f(2)), [1.0])


def test_a_projection_by_hand():
    # 0.25 goes to 0 and 1 by 3 to 1, 1.5 in halves, 9 to the last.
    projected = distributional.project(f(0.25, 1.5, 9), f(0.5, 0.25, 0.25), f(0, 1, 2))
    np.testing.assert_allclose(projected, [0.375, 0.25, 0.375], rtol=1e-6)
    # The mean is kept where nothing is beyond the atoms.
    returns_, atoms = f(-0.7, 0.1, 1.9), f(-2, -1, 0, 1, 2)
    projected = distributional.project(returns_, f(0.2, 0.3, 0.5), atoms)
    assert float(projected @ atoms) == pytest.approx(0.2 * -0.7 + 0.3 * 0.1 + 0.5 * 1.9, rel=1e-5)


def test_categorical_divergence_by_hand():
    atoms, one = f(0, 1, 2), f(1)[0]
    # Of a terminal transition all is on the reward; of an even one, 3 to 1 in favour of it.
    logits = jnp.log(f(0.5, 0.25, 0.25))
    terminal = distributional.categorical_divergence(logits, one, f(0)[0], f(0, 0, 1), atoms)
    assert float(terminal) == pytest.approx(np.log(4), rel=1e-5)
    # 1 + 0.5 * (0, 1, 2) by these: half on 1, and the half of 1.5 on 1 and 2.
    half = distributional.categorical_divergence(logits, one, f(0.5)[0], f(0.5, 0.5, 0), atoms)
    expected = 0.75 * np.log(0.75 / 0.25) + 0.25 * np.log(0.25 / 0.25)
    assert float(half) == pytest.approx(expected, rel=1e-5)
    same = distributional.categorical_divergence(logits, f(0)[0], one, f(0.5, 0.25, 0.25), atoms)
    assert float(same) == pytest.approx(0.0, abs=1e-6)

    def total(logits, probabilities):
        return distributional.categorical_divergence(logits, one, f(0)[0], probabilities, atoms)

    of_logits, of_target = jax.grad(total, argnums=(0, 1))(logits, f(0, 0, 1))
    np.testing.assert_allclose(of_logits, [0.5, -0.75, 0.25], rtol=1e-5)
    np.testing.assert_array_equal(of_target, 0)


def test_quantile_huber_by_hand():
    # Midpoints 1/4 and 3/4; Huber: 1/2, 1/2 and 1/8, 5/2; weights 1/4, 3/4 and 3/4, 1/4.
    loss = distributional.quantile_huber(jnp.asarray([[1.0, -1.0], [0.5, -3.0]]), 1.0)
    assert float(loss) == pytest.approx(0.25 + 0.359375, rel=1e-6)


def test_munchausen_reward_by_hand():
    half, log_half = f(0.5)[0], jnp.log(f(0.5))[0]
    reward = lambda log_prob, temperature: float(  # noqa: E731
        values.munchausen_reward(
            *(f(1)[0], half, log_prob, jnp.log(f(0.5, 0.5))),
            **{"scale": 0.9, "temperature": temperature, "least": -1.0},
        )
    )
    assert reward(log_half, 1.0) == pytest.approx(1 - 0.9 * np.log(2) + 0.5 * np.log(2), rel=1e-5)
    assert reward(f(-100)[0], 2.0) == pytest.approx(1 - 0.9 + 0.5 * 2 * np.log(2), rel=1e-5)


def test_signed_hyperbolic_by_hand_and_its_inverse():
    np.testing.assert_allclose(
        values.signed_hyperbolic(f(0, 3, -8), epsilon=0.1), [0, 1.3, -2.8], rtol=1e-6
    )
    x = f(-1e4, -3.5, -1e-3, 0, 0.02, 7, 1e5)
    inverse = values.signed_parabolic(values.signed_hyperbolic(x))
    np.testing.assert_allclose(inverse, x, rtol=1e-3, atol=1e-6)


def test_n_step_targets_by_hand():
    rewards, estimates, is_step = f(1, 2, 4, 8), f(10, 20, 30, 40, 50), f(1, 1, 1, 1)
    two = returns.n_step_targets(rewards, f(0.5, 0.5, 0.5, 0.5), estimates, is_step, 2)
    # The last but one needs row 4, and so does the last: 8 + 0.5 * 50.
    np.testing.assert_allclose(two, [1 + 0.5 * (2 + 15), 2 + 0.5 * (4 + 20), 4 + 16.5, 33])
    # Row 2 is the last of its episode: it is bootstrapped from, unless the discount is 0.
    rewards, is_step = f(1, 2, 0, 8), f(1, 1, 0, 1)
    truncated = returns.n_step_targets(rewards, f(0.5, 0.5, 0, 0.5), estimates, is_step, 3)
    np.testing.assert_allclose(truncated, [1 + 0.5 * (2 + 15), 2 + 15, 30, 8 + 25])
    terminated = returns.n_step_targets(rewards, f(0.5, 0, 0, 0.5), estimates, is_step, 3)
    np.testing.assert_allclose(terminated, [2, 2, 30, 33])


def test_the_priority_of_a_sequence_mixes_the_greatest_error_and_the_mean():
    priority = priorities.of_sequence(f(-4, 1, 1, 100), f(1, 1, 1, 0), 0.75)
    assert float(priority) == pytest.approx(0.75 * 4 + 0.25 * 2, rel=1e-5)
    assert float(priorities.of_sequence(f(9, 9), f(0, 0), 0.9)) == pytest.approx(1e-6)


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


def test_vtrace_by_hand():
    # Errors: .5 * (1 + .5*2 - 1) = .5; min(3, 1) * (1 + .5*4 - 2) = 1. Traces: .5 * .5, .5 * 1.
    # Targets: 1 + .5 + .25*1 and 2 + 1. Advantages: .5 * (1 + .5*3 - 1) and 1 * (1 + .5*4 - 2).
    found = returns.vtrace(
        jnp.log(f(0.5, 3)), f(1, 1), f(0.5, 0.5), f(1, 2, 4), f(1, 1), lambda_=1.0
    )
    np.testing.assert_allclose(found.targets, [1.75, 3.0], rtol=1e-6)
    np.testing.assert_allclose(found.advantages, [0.75, 1.0], rtol=1e-6)
    # Errors and advantages by up to 2 now; the traces as before.
    found = returns.vtrace(
        jnp.log(f(0.5, 3)), f(1, 1), f(0.5, 0.5), f(1, 2, 4), f(1, 1), lambda_=1.0, clip_ratio=2.0
    )
    np.testing.assert_allclose(found.targets, [2.0, 4.0], rtol=1e-6)
    np.testing.assert_allclose(found.advantages, [1.0, 2.0], rtol=1e-6)


def test_vtrace_stops_at_the_last_row_of_an_episode():
    rewards, estimates, is_step = f(1, 0, 7), f(1, 2, 3, 4), f(1, 0, 1)
    for discount, expected in ((0.5, 2.0), (0.0, 1.0)):  # Cut short; terminated.
        found = returns.vtrace(
            jnp.zeros(3), rewards, f(discount, 0.5, 0.5), estimates, is_step, lambda_=1.0
        )
        np.testing.assert_allclose(found.targets, [expected, 2.0, 9.0])
        np.testing.assert_allclose(found.advantages, [expected - 1.0, 0.0, 6.0])


def test_vtrace_of_ones_own_steps_is_generalized_advantages():
    rng = np.random.default_rng(0)
    rewards, estimates = (jnp.asarray(rng.normal(size=n), jnp.float32) for n in (9, 10))
    discounts = jnp.asarray(rng.uniform(size=9), jnp.float32)
    is_step = f(1, 1, 0, 1, 1, 1, 0, 1, 1)
    found = returns.vtrace(jnp.zeros(9), rewards, discounts, estimates, is_step, lambda_=0.9)
    advantages = returns.generalized_advantages(rewards, discounts, estimates, is_step, 0.9)
    np.testing.assert_allclose(found.targets, estimates[:-1] + advantages, rtol=1e-5)


def test_no_gradient_flows_through_vtrace():
    def total(log_ratios, estimates):
        found = returns.vtrace(log_ratios, f(1, 1), f(1, 1), estimates, f(1, 1), lambda_=1.0)
        return jnp.sum(found.targets + found.advantages)

    for gradient in jax.grad(total, argnums=(0, 1))(f(0.1, 0.2), f(1, 2, 3)):
        np.testing.assert_array_equal(gradient, 0.0)


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


def test_an_expectile_by_hand():
    # Below the estimate: 0.2 of the square; above it: 0.8.
    np.testing.assert_allclose(values.expectile(f(-2, 0, 3), 0.8), [0.8, 0.0, 7.2], rtol=1e-6)
    # Of two samples 0 and 1 the estimate v with 0.8 (1 - v) = 0.2 v: no gradient at 0.8.
    total = lambda v: jnp.sum(values.expectile(f(0, 1) - v, 0.8))  # noqa: E731
    assert float(jax.grad(total)(0.8)) == pytest.approx(0.0, abs=1e-6)


def test_weights_of_advantages_by_hand():
    found = policy.exponential_weight(f(-1, 0, 1, 9), temperature=0.5, greatest=10.0)
    np.testing.assert_allclose(found, [np.exp(-2), 1.0, np.exp(2), 10.0], rtol=1e-6)
    gradient = jax.grad(lambda a: jnp.sum(policy.exponential_weight(a, 0.5, 10.0)))(f(1, 2))
    np.testing.assert_array_equal(gradient, [0, 0])
