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
