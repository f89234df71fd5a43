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


def test_actions_without_a_family_are_refused_in_one_line():
    with pytest.raises(ValueError, match=r"ppo drives .* this environment's actions are a dict"):
        distributions.for_actions("ppo", {"left": specs.DiscreteArray(2)})


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
    ],
)
def test_divergences_are_those_of_the_draws(family, size):
    p, q = 0.5 * jax.random.normal(jax.random.key(0), (2, size))
    draws = jax.vmap(family.sample, (None, 0))(p, jax.random.split(jax.random.key(1), 20_000))
    of_each = jax.vmap(lambda x: family.log_prob(p, x) - family.log_prob(q, x))(draws)
    assert float(family.kl(p, q)) == pytest.approx(float(of_each.mean()), abs=0.03)
    assert float(family.kl(p, p)) == pytest.approx(0.0, abs=1e-6)
    # What is decoupled is as far away together as the whole, where one of two is the old.
    parts = family.decouple(p, q)
    assert [float(family.kl(q, part)) > 0 for part in parts] == [True] * len(parts)
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
