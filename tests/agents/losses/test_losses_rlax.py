"""The losses give what rlax gives."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.losses import distributional, policy, returns, values

pytestmark = pytest.mark.long  # The import of rlax beside TensorFlow takes half a minute.

TWIN = pathlib.Path(__file__).with_name("rlax_twin.py")


@pytest.fixture(scope="module")
def given():
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    return {
        "q_tm1": normal(7, 4),
        "q_t": normal(7, 4),
        "q_t_selector": normal(7, 4),
        "a_tm1": rng.integers(0, 4, 7).astype(np.int32),
        "r_t": normal(7),
        "discount_t": rng.uniform(size=7).astype(np.float32),
        "rewards": normal(5, 9),
        "values": normal(5, 10),
        "discounts": rng.uniform(size=(5, 9)).astype(np.float32),
        "ratios": np.exp(normal(5, 9)),
        "lambda": np.float32(0.9),
        "atoms": np.linspace(-2, 3, 6, dtype=np.float32),
        "logits_tm1": normal(7, 4, 6),
        "logits_t": normal(7, 4, 6),
    }


@pytest.fixture(scope="module")
def twin(given, tmp_path_factory):
    if importlib.util.find_spec("rlax") is None:
        pytest.fail("rlax is not installed; it comes with the extra `test`.")
    folder = tmp_path_factory.mktemp("rlax")
    np.savez(folder / "in.npz", **given)
    subprocess.run(
        [sys.executable, str(TWIN), str(folder / "in.npz"), str(folder / "out.npz")],
        check=True,
        timeout=300,
        env={**os.environ, "PYTHONWARNINGS": "ignore", "XLA_FLAGS": ""},
    )
    return dict(np.load(folder / "out.npz"))


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_q_learning(given, twin):
    args = [given[name] for name in ("q_tm1", "a_tm1", "r_t", "discount_t", "q_t")]
    error = jax.vmap(values.q_learning_error)
    close(error(*args, given["q_t"]), twin["q_learning"])
    close(error(*args, given["q_t_selector"]), twin["double_q_learning"])


def test_huber(given, twin):
    close(values.huber(given["r_t"], 0.7), twin["huber"])


def test_generalized_advantages(given, twin):
    advantages = jax.vmap(returns.generalized_advantages, (0, 0, 0, None, None))(
        given["rewards"], given["discounts"], given["values"], jnp.ones(9), 0.9
    )
    close(advantages, twin["advantages"])


def test_vtrace(given, twin):
    found = jax.vmap(returns.vtrace, (0, 0, 0, 0, None, None, None))(
        np.log(given["ratios"]),
        given["rewards"],
        given["discounts"],
        given["values"],
        jnp.ones(9),
        0.9,
        1.3,
    )
    close(found.targets - given["values"][:, :-1], twin["vtrace_errors"])
    close(found.advantages, twin["vtrace_advantages"])


def test_clipped_surrogate(given, twin):
    log_prob = jnp.log(given["ratios"])
    loss = policy.clipped_surrogate(log_prob, jnp.zeros_like(log_prob), given["rewards"], 0.2)
    close(loss.mean(axis=1), twin["surrogate"])


def test_two_hot(given, twin):
    two_hot = jax.vmap(distributional.two_hot, (0, None))
    found = two_hot(jnp.asarray(3.0 * given["r_t"]), given["atoms"])
    # The twin's own error is 1e-5, by way of a difference of large numbers; ours is 1e-7.
    np.testing.assert_allclose(found, twin["two_hot"], rtol=0, atol=3e-5)


def test_projection(given, twin):
    returns_, logits = 3.0 * given["logits_tm1"][:, 0], given["logits_t"][:, 0]
    projected = jax.vmap(distributional.project, (0, 0, None))(
        returns_, jax.nn.softmax(logits), given["atoms"]
    )
    close(projected, twin["project"])


def chosen(x, actions):
    return x[np.arange(len(actions)), actions]


def test_categorical_q_learning_is_a_cross_entropy_less_the_entropy_of_its_target(given, twin):
    atoms, r_t, discount_t = given["atoms"], given["r_t"], given["discount_t"]
    following = jax.nn.softmax(chosen(given["logits_t"], given["q_t_selector"].argmax(1)))
    divergence = jax.vmap(distributional.categorical_divergence, (0, 0, 0, 0, None))(
        chosen(given["logits_tm1"], given["a_tm1"]), r_t, discount_t, following, atoms
    )
    target = jax.vmap(distributional.project, (0, 0, None))(
        r_t[:, None] + discount_t[:, None] * atoms, following, atoms
    )
    entropy = jnp.sum(jax.scipy.special.entr(target), axis=1)
    close(divergence + entropy, twin["categorical"])


def test_quantile_q_learning(given, twin):
    best = given["logits_t"].mean(2).argmax(1)
    targets = given["r_t"][:, None] + given["discount_t"][:, None] * chosen(given["logits_t"], best)
    errors = targets[:, None, :] - chosen(given["logits_tm1"], given["a_tm1"])[:, :, None]
    loss = jax.vmap(distributional.quantile_huber, (0, None))(errors, 0.7)
    close(loss, twin["quantile"])


def test_value_rescaling(given, twin):
    close(values.signed_hyperbolic(10.0 * given["r_t"]), twin["hyperbolic"])
    # Of rlax's the last digits are lost in a difference.
    np.testing.assert_allclose(values.signed_parabolic(given["r_t"]), twin["parabolic"], rtol=1e-2)


def test_n_step_targets(given, twin):
    targets = jax.vmap(returns.n_step_targets, (0, 0, 0, None, None))(
        given["rewards"], given["discounts"], given["values"], jnp.ones(9), 3
    )
    close(targets, twin["targets"])
