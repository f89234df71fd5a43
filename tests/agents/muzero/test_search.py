"""Searches in models written out, with what they come to by hand."""

import functools
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.losses import values
from troupe.agents.muzero import MuZeroConfig
from troupe.agents.muzero.networks import MuZeroNetworks, expected, make_atoms
from troupe.agents.muzero.search import make_search
from troupe.agents.networks.core import Network
from troupe.environments import MissingExtraError

CONFIG = {"num_atoms": 301, "min_return": -20.0, "max_return": 20.0, "discount": 0.5}
ATOMS = make_atoms(MuZeroConfig(**CONFIG))


def certain(x):
    """Logits [..., Z] of returns [...], to within a hundredth."""
    nearest = jnp.argmin(jnp.abs(values.signed_hyperbolic(x)[..., None] - ATOMS), axis=-1)
    return 1e3 * jax.nn.one_hot(nearest, len(ATOMS))


class Model(NamedTuple):
    """States are all alike but for how many steps they are ahead."""

    rewards: Any
    """[A] of the actions."""
    value: Any
    """Of every state but the first, which has 0."""
    goes_on: Any
    """Logit."""
    prior: Any
    """[A] logits of the policy."""


@functools.cache
def make(simulations):
    """`search(model, key, scale)`."""

    def advance(model, state, action):
        goes_on = jnp.broadcast_to(model.goes_on, action.shape)
        return state + 1.0, certain(model.rewards[action]), goes_on

    def predict(model, state):
        logits = jnp.broadcast_to(model.prior, (len(state), len(model.prior)))
        return logits, certain(jnp.where(state[:, 0] > 0, model.value, 0.0))

    networks = MuZeroNetworks(
        *(Network(lambda key: (), apply) for apply in (lambda model, x: x, advance, predict))
    )
    search = make_search(networks, MuZeroConfig(**CONFIG, num_simulations=simulations))

    def run(model, key, scale):
        found = search(MuZeroNetworks(model, model, model), jnp.zeros((1, 1)), key, scale)
        return jax.tree.map(lambda x: x[0], found)

    return jax.jit(run)


def search_in(rewards, value, goes_on, *, prior=(0.0, 0.0), simulations=2, key=0, scale=0.0):
    """What a search in such a model comes to."""
    model = Model(*map(jnp.float32, (rewards, value, goes_on, prior)))
    return make(simulations)(model, jax.random.key(key), scale)


def test_returns_stand_for_themselves():
    given = jnp.asarray([-20.0, -3.0, 0.0, 0.5, 7.0, 20.0])
    np.testing.assert_allclose(expected(certain(given), ATOMS), given, atol=0.1)


@pytest.mark.parametrize(("goes_on", "following"), [(50.0, 2.0), (-50.0, 0.0), (0.0, 1.0)])
def test_a_search_of_one_step_is_what_one_computes_by_hand(goes_on, following):
    """Values of 1 and 0, and half of 4 behind both: as much of it as the episode goes on."""
    found = search_in([1.0, 0.0], 4.0, goes_on)
    assert int(found.action) == 0
    # (50 + visits of the most visited) / 10 of the values scaled to 0 and 1 (equation 8).
    wanted = jax.nn.softmax(jnp.asarray([5.1, 0.0]))
    np.testing.assert_allclose(found.policy, wanted, rtol=1e-4)
    # Of what that policy does, however often the search looked at each: it looked once.
    value = wanted @ jnp.asarray([1 + following, following])
    assert float(found.value) == pytest.approx(float(value), abs=0.05)


def test_a_search_looks_further_than_one_step():
    """Both actions are worth 1 a step for ever: 1 + 1/2 + 1/4 ..., of which the values say 0."""
    found = search_in([1.0, 1.0], 0.0, 50.0, simulations=32)
    assert 1.5 < float(found.value) < 2.0


def test_actions_are_drawn_with_noise_and_none_without():
    def actions(scale):
        return {
            int(search_in([0.0, 0.0], 0.0, 50.0, prior=[0.0, 0.5], key=key, scale=scale).action)
            for key in range(20)
        }

    assert actions(0.0) == {1}
    assert actions(1.0) == {0, 1}


def test_without_mctx_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mctx", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'troupe\[muzero\]'") as refusal:
        make.__wrapped__(2)
    assert "\n" not in str(refusal.value)
