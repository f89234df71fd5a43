"""Distributions agree with themselves: what they draw, how likely they say it is, their entropy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from troupe.agents.networks import distributions


def test_categorical_probabilities_sum_to_one_and_match_the_draws():
    family = distributions.categorical(4)
    logits = jnp.asarray([0.3, -1.0, 2.0, 0.0])
    probabilities = np.exp([float(family.log_prob(logits, a)) for a in range(4)])
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-6)
    draws = jax.vmap(family.sample, (None, 0))(logits, jax.random.split(jax.random.key(0), 20_000))
    observed = np.bincount(np.asarray(draws), minlength=4) / 20_000
    np.testing.assert_allclose(observed, probabilities, atol=0.015)
    assert int(family.mode(logits)) == 2
    entropy = -(probabilities * np.log(probabilities)).sum()
    assert float(family.entropy(logits)) == pytest.approx(entropy, rel=1e-5)


def test_independent_categoricals_sum_to_one_over_all_combinations():
    family = distributions.independent_categoricals((2, 3))
    logits = jnp.asarray([0.1, 0.7, -0.5, 0.2, 1.0])
    log_probs = [
        float(family.log_prob(logits, jnp.asarray(pair)))
        for pair in itertools.product(range(2), range(3))
    ]
    assert np.exp(log_probs).sum() == pytest.approx(1.0, abs=1e-6)
    assert float(family.entropy(logits)) == pytest.approx(
        -(np.exp(log_probs) * log_probs).sum(), rel=1e-5
    )
    np.testing.assert_array_equal(family.mode(logits), [1, 2])
    assert family.sample(logits, jax.random.key(1)).shape == (2,)


def test_gaussian_log_prob_entropy_and_draws():
    family = distributions.gaussian((2,))
    p = jnp.asarray([0.5, -1.0, np.log(2.0), np.log(0.5)])
    at_mean = float(family.log_prob(p, p[:2]))
    assert at_mean == pytest.approx(-np.log(2 * np.pi), rel=1e-5)  # The deviations cancel.
    draws = jax.vmap(family.sample, (None, 0))(p, jax.random.split(jax.random.key(0), 20_000))
    np.testing.assert_allclose(draws.mean(0), [0.5, -1.0], atol=0.05)
    np.testing.assert_allclose(draws.std(0), [2.0, 0.5], rtol=0.03)
    estimate = -jax.vmap(family.log_prob, (None, 0))(p, draws).mean()
    assert float(family.entropy(p)) == pytest.approx(float(estimate), rel=0.02)


@pytest.mark.parametrize(
    ("spec", "parameters"),
    [
        (specs.DiscreteArray(5), 5),
        (specs.BoundedArray((3,), np.float32, -1, 1), 3),
        (specs.BoundedArray((2,), np.int32, 0, [1, 4]), 7),
    ],
)
def test_a_family_for_every_kind_of_action(spec, parameters):
    family = distributions.for_actions("ppo", spec)
    assert family.num_parameters == parameters
    p = jnp.zeros(parameters + family.free_parameters)
    spec.validate(np.asarray(jnp.clip(family.mode(p), spec.minimum, spec.maximum), spec.dtype))


@pytest.mark.parametrize(
    "spec",
    [
        {},
        specs.Array((2,), np.int32),
        specs.StringArray(()),
        specs.BoundedArray((84, 84), np.uint8, 0, 255),
        {"left": specs.DiscreteArray(2), "right": (specs.Array((2,), np.int32),)},
    ],
)
def test_actions_without_a_family_are_refused_in_one_line(spec):
    with pytest.raises(ValueError, match=r"ppo drives .* this environment's actions are ") as error:
        distributions.for_actions("ppo", spec)
    assert "\n" not in str(error.value)


def test_choices_count_from_the_least_and_have_the_type_of_their_spec():
    spec = specs.BoundedArray((2, 2), np.int8, [[1, 0], [-1, 5]], [[2, 0], [1, 6]])
    family = distributions.for_actions("ppo", spec)
    assert family.num_parameters == 2 + 1 + 3 + 2
    p = jnp.log(jnp.asarray([0.25, 0.75, 1.0, 0.5, 0.3, 0.2, 0.1, 0.9]))
    mode = np.asarray(family.mode(p))
    np.testing.assert_array_equal(mode, [[2, 0], [-1, 6]])
    assert mode.dtype == np.int8
    assert float(family.log_prob(p, mode)) == pytest.approx(np.log(0.75 * 1.0 * 0.5 * 0.9))
    draws = jax.vmap(family.sample, (None, 0))(p, jax.random.split(jax.random.key(0), 5_000))
    for draw in np.asarray(draws)[:100]:
        spec.validate(draw)
    assert (draws[:, 0, 0] == 2).mean() == pytest.approx(0.75, abs=0.03)
    assert (draws[:, 1, 0] == 0).mean() == pytest.approx(0.3, abs=0.03)


NESTED = {
    "b": specs.DiscreteArray(2),
    "a": (specs.BoundedArray((1,), np.float32, -1.0, 1.0), specs.BoundedArray((2,), np.int8, 0, 1)),
}
"""Parameters: one mean, logits 2 + 2 and 2, and behind them a logarithm of a deviation."""
PARTS = distributions.for_actions("ppo", NESTED)
MEAN, LOG_STD = 0.5, np.log(2.0)
LOGITS = np.log([[0.5, 0.5], [0.2, 0.8], [0.25, 0.75]])
OF_PARTS = jnp.asarray([MEAN, *LOGITS.ravel(), LOG_STD])


def test_a_product_is_what_comes_out_by_hand():
    assert (PARTS.num_parameters, PARTS.free_parameters) == (7, 1)
    action = {"b": jnp.int32(1), "a": (jnp.float32([2.5]), jnp.int8([0, 1]))}
    # One deviation above the mean.
    normal = -0.5 - LOG_STD - 0.5 * np.log(2 * np.pi)
    by_hand = normal + np.log(0.5) + np.log(0.8) + np.log(0.75)
    assert float(PARTS.log_prob(OF_PARTS, action)) == pytest.approx(by_hand, rel=1e-5)
    probabilities = np.exp(LOGITS)
    by_hand = 0.5 * np.log(2 * np.pi * np.e) + LOG_STD - (probabilities * LOGITS).sum()
    assert float(PARTS.entropy(OF_PARTS)) == pytest.approx(by_hand, rel=1e-5)
    mode = PARTS.mode(OF_PARTS)
    assert float(mode["a"][0][0]) == MEAN
    assert (mode["a"][1].tolist()[1], int(mode["b"])) == (1, 1)
    uniform = jnp.asarray([0.0] * 7 + [LOG_STD])
    by_hand = MEAN**2 / 8 + (probabilities * (LOGITS - np.log(0.5))).sum()
    assert float(PARTS.kl(OF_PARTS, uniform)) == pytest.approx(by_hand, rel=1e-5)


def test_a_product_draws_each_leaf_with_a_key_of_its_own():
    keys = jax.random.split(jax.random.key(0), 20_000)
    draws, log_probs = jax.vmap(PARTS.sample_and_log_prob, (None, 0))(OF_PARTS, keys)
    again = jax.vmap(PARTS.log_prob, (None, 0))(OF_PARTS, draws)
    np.testing.assert_allclose(log_probs, again, atol=1e-4)
    assert -float(log_probs.mean()) == pytest.approx(float(PARTS.entropy(OF_PARTS)), abs=0.03)
    number, digits = draws["a"]
    leaves = np.stack([number[:, 0], digits[:, 0], digits[:, 1], draws["b"]])
    np.testing.assert_allclose(np.corrcoef(leaves), np.eye(4), atol=0.03)
    assert float(number.mean()) == pytest.approx(MEAN, abs=0.05)
    assert float(draws["b"].mean()) == pytest.approx(0.75, abs=0.01)


def test_a_product_is_decoupled_leaf_by_leaf():
    new, old = jnp.arange(1.0, 9.0), jnp.arange(11.0, 19.0)
    assert PARTS.respects == ("mean", "deviation", "whole", "whole")
    mean, deviation, digits, choice = (np.asarray(x) for x in PARTS.decouple(new, old))
    np.testing.assert_array_equal(mean, [1, *old[1:]])
    np.testing.assert_array_equal(deviation, [*old[:7], 8])
    np.testing.assert_array_equal(digits, [11, 2, 3, 4, 5, 16, 17, 18])
    np.testing.assert_array_equal(choice, [*old[:5], 6, 7, 18])


LOW, HIGH = np.float32([-1.0, 0.0]), np.float32([1.0, 4.0])
TANH = distributions.tanh_gaussian(LOW, HIGH)


def test_tanh_gaussian_is_a_change_of_variables():
    """Its density, put together numerically, is that of the draws and has the area 1."""
    family = distributions.tanh_gaussian(np.float32([-1.0]), np.float32([3.0]))
    p = jnp.asarray([0.4, np.log(0.8)])
    edges = np.linspace(-1.0, 3.0, 4001)
    middles = (edges[1:] + edges[:-1]) / 2
    density = np.exp(jax.vmap(family.log_prob, (None, 0))(p, jnp.float32(middles)[:, None]))
    assert density.sum() * (edges[1] - edges[0]) == pytest.approx(1.0, abs=1e-3)
    # P(action <= x) by the normal distribution before the squashing.
    u = np.arctanh((edges[1:-1] + 1.0) / 2.0 - 1.0 + 1e-12)
    below = jax.scipy.stats.norm.cdf((u - 0.4) / 0.8)
    np.testing.assert_allclose(
        np.diff(below) / (edges[1] - edges[0]), density[1:-1], rtol=5e-3, atol=5e-3
    )
    draws = jax.vmap(family.sample, (None, 0))(p, jax.random.split(jax.random.key(0), 20_000))
    assert (draws[:, 0] < 1.0).mean() == pytest.approx(float(below[1999]), abs=0.01)


def test_tanh_gaussian_log_prob_is_that_of_the_slope_by_differences():
    p = jnp.asarray([0.3, -0.7, np.log(0.5), np.log(1.5)])
    for seed in range(5):
        u = np.random.default_rng(seed).normal(size=2)
        squash = lambda x: (LOW + HIGH) / 2 + (HIGH - LOW) / 2 * np.tanh(x)  # noqa: E731
        slope = (squash(u + 1e-6) - squash(u - 1e-6)) / 2e-6
        normal = jax.scipy.stats.norm.logpdf(u, p[:2], np.exp(p[2:])).sum()
        expected = float(normal) - np.log(slope).sum()
        assert float(TANH.log_prob(p, jnp.float32(squash(u)))) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("std", [1e-3, 0.3, 2.0])
@pytest.mark.parametrize("mean", [0.0, 1.5, 8.0])
def test_tanh_gaussian_draws_know_their_probability(mean, std):
    p = jnp.asarray([mean, -mean, np.log(std), np.log(std)])
    keys = jax.random.split(jax.random.key(0), 4_000)
    actions, log_probs = jax.vmap(TANH.sample_and_log_prob, (None, 0))(p, keys)
    assert (actions >= LOW).all()
    assert (actions <= HIGH).all()
    assert np.isfinite(log_probs).all()
    np.testing.assert_array_equal(actions, jax.vmap(TANH.sample, (None, 0))(p, keys))
    if mean < 3.0 and std < 1.0:
        again = jax.vmap(TANH.log_prob, (None, 0))(p, actions)
        np.testing.assert_allclose(log_probs, again, atol=0.1 if std < 0.01 else 0.02)
    assert float(TANH.entropy(p)) == pytest.approx(-float(log_probs.mean()), abs=0.15)


@pytest.mark.parametrize("mean", [0.0, 30.0, -1000.0])
def test_tanh_gaussian_gradients_are_finite_at_the_bounds(mean):
    p = jnp.asarray([mean, mean, 5.0, -50.0])
    gradient = jax.grad(lambda p: TANH.sample_and_log_prob(p, jax.random.key(0))[1])(p)
    assert np.isfinite(gradient).all()
    gradient = jax.grad(lambda p: TANH.log_prob(p, jnp.asarray(HIGH)))(p)
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(jnp.clip(TANH.mode(p), LOW, HIGH), TANH.mode(p))


def test_tanh_gaussian_needs_bounds():
    with pytest.raises(ValueError, match="needs finite bounds"):
        distributions.tanh_gaussian(np.float32([-np.inf]), np.float32([1.0]))


def test_other_families_draw_and_then_say_how_likely():
    family, p = distributions.categorical(3), jnp.asarray([0.1, 2.0, -1.0])
    action, log_prob = family.sample_and_log_prob(p, jax.random.key(4))
    assert action == family.sample(p, jax.random.key(4))
    assert log_prob == family.log_prob(p, action)


@pytest.mark.parametrize(
    ("family", "size"),
    [
        (distributions.categorical(4), 4),
        (distributions.independent_categoricals((2, 3)), 5),
        (distributions.gaussian((2,)), 4),
        (TANH, 4),
        (PARTS, 8),
        (distributions.for_actions("mpo", NESTED, squashed=True), 8),
    ],
)
def test_divergences_are_those_of_the_draws(family, size):
    p, q = 0.5 * jax.random.normal(jax.random.key(0), (2, size))
    draws = jax.vmap(family.sample, (None, 0))(p, jax.random.split(jax.random.key(1), 20_000))
    of_each = jax.vmap(lambda x: family.log_prob(p, x) - family.log_prob(q, x))(draws)
    assert float(family.kl(p, q)) == pytest.approx(float(of_each.mean()), abs=0.03, rel=0.03)
    assert float(family.kl(p, p)) == pytest.approx(0.0, abs=1e-6)
    # What is decoupled is as far away together as the whole, where one of two is the old.
    parts = family.decouple(p, q)
    assert [float(family.kl(q, part)) > 0 for part in parts] == [True] * len(parts)
    assert len(parts) == len(family.respects)
    same = family.decouple(p, p)
    assert all(np.array_equal(part, p) for part in same)


def test_means_and_deviations_are_decoupled():
    new, old = jnp.asarray([1.0, 2.0, 3.0, 4.0]), jnp.asarray([5.0, 6.0, 7.0, 8.0])
    by_mean, by_deviation = TANH.decouple(new, old)
    np.testing.assert_array_equal(by_mean, [1, 2, 7, 8])
    np.testing.assert_array_equal(by_deviation, [5, 6, 3, 4])


def test_boxes_are_squashed_where_that_is_asked_for():
    box = specs.BoundedArray((2,), np.float32, -1.0, [1.0, 3.0])
    family = distributions.for_actions("mpo", box, squashed=True)
    assert family.num_parameters == 4
    action = family.sample(jnp.asarray([30.0, 30.0, 0.0, 0.0]), jax.random.key(0))
    np.testing.assert_allclose(action, [1.0, 3.0], atol=1e-5)
    assert (
        distributions.for_actions("mpo", specs.DiscreteArray(3), squashed=True).num_parameters == 3
    )
