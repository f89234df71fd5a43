"""Tokens drawn against exact frequencies, and log-probabilities against those of numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.generation.sampling import Sampling, draw, log_probs

LOGITS = np.log([0.4, 0.25, 0.2, 0.1, 0.05]).astype(np.float32)
DRAWS = 20_000


def frequencies(sampling, allowed=None):
    logits = jnp.broadcast_to(LOGITS, (DRAWS, 5))
    keys = jax.random.split(jax.random.key(0), DRAWS)
    tokens, _ = jax.jit(lambda keys: draw(logits, keys, sampling, allowed))(keys)
    return np.bincount(tokens, minlength=5) / DRAWS


@pytest.mark.parametrize(
    ("sampling", "weights"),
    [
        (Sampling(), [0.4, 0.25, 0.2, 0.1, 0.05]),
        (Sampling(temperature=0.5), [0.16, 0.0625, 0.04, 0.01, 0.0025]),
        (Sampling(top_k=2), [0.4, 0.25, 0, 0, 0]),
        (Sampling(top_k=9), [0.4, 0.25, 0.2, 0.1, 0.05]),
        (Sampling(top_p=0.6), [0.4, 0.25, 0, 0, 0]),
        (Sampling(top_p=0.7), [0.4, 0.25, 0.2, 0, 0]),
        (Sampling(top_p=0.1), [1, 0, 0, 0, 0]),
        # Of the three likeliest, 0.4 is 0.47 of the mass: two make up 0.6 of it.
        (Sampling(top_k=3, top_p=0.6), [0.4, 0.25, 0, 0, 0]),
        (Sampling(temperature=0), [1, 0, 0, 0, 0]),
        (Sampling(top_k=1), [1, 0, 0, 0, 0]),
    ],
)
def test_tokens_come_as_often_as_they_should(sampling, weights):
    expected = np.array(weights) / np.sum(weights)
    found = frequencies(sampling)
    assert (found[expected == 0] == 0).all()
    error = np.sqrt(expected * (1 - expected) / DRAWS)
    assert (np.abs(found - expected) <= 4.5 * error).all(), (found, expected)


def test_what_may_not_come_never_does():
    allowed = np.array([False, True, False, True, True])
    found = frequencies(Sampling(), allowed)
    expected = np.array([0, 0.25, 0, 0.1, 0.05]) / 0.4
    assert (found[~allowed] == 0).all()
    assert np.abs(found - expected).max() < 0.015
    assert frequencies(Sampling(temperature=0), allowed).argmax() == 1


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_those_of_the_distribution_without_truncation(temperature):
    random = np.random.default_rng(0)
    logits = random.normal(size=(6, 5)).astype(np.float32)
    allowed = random.uniform(size=(6, 5)) < 0.7
    allowed[:, 2] = True
    scores = np.where(allowed, logits.astype(np.float64) / temperature, -np.inf)
    exact = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    for sampling in (Sampling(temperature), Sampling(temperature, top_k=2, top_p=0.5)):
        keys = jax.random.split(jax.random.key(1), 6)
        tokens, found = draw(logits, keys, sampling, allowed)
        np.testing.assert_allclose(found, exact[np.arange(6), tokens], atol=1e-6)
        again = log_probs(logits, tokens, temperature, allowed)
        np.testing.assert_array_equal(found, again)


def test_a_token_that_may_not_come_leaves_gradients_finite():
    allowed = np.array([False, True, True, True, True])

    def loss(logits):
        return jnp.sum(0.0 * log_probs(logits, jnp.arange(5), 1.0, allowed))

    assert loss(jnp.zeros((5, 5))) == 0
    assert np.isfinite(jax.grad(loss)(jnp.zeros((5, 5)))).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
    ],
)
def test_a_field_out_of_its_range_is_named(fields, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**fields)
