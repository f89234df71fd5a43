"""Gradient descent in one call against its parts, and against optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from troupe.agents.learning.descent import descend

PARAMS = {"w": jnp.asarray([[3.0, -1.0], [0.5, 2.0]]), "b": jnp.asarray([1.0, -2.0])}
X = jnp.asarray([[1.0, 2.0], [-1.0, 0.5], [4.0, 0.0]])


def loss(params, x, scale):
    y = x @ params["w"] + params["b"]
    return scale * jnp.mean(y**2), {"mean": jnp.mean(y)}


@pytest.mark.parametrize("max_norm", [None, 0.5, 1e6])
def test_a_step_is_that_of_optax(max_norm):
    clip = optax.identity() if max_norm is None else optax.clip_by_global_norm(max_norm)
    expected = optax.chain(clip, optax.sgd(0.1, momentum=0.9))
    ours, theirs = PARAMS, PARAMS
    state, other = optax.sgd(0.1, momentum=0.9).init(ours), expected.init(theirs)
    for _ in range(3):
        step = descend(loss, optax.sgd(0.1, momentum=0.9), ours, state, X, 2.0, max_norm=max_norm)
        gradients, aux = jax.grad(loss, has_aux=True)(theirs, X, 2.0)
        assert float(step.loss) == pytest.approx(float(loss(ours, X, 2.0)[0]), rel=1e-6)
        assert float(step.gradient_norm) == pytest.approx(
            float(optax.tree.norm(gradients)), rel=1e-5
        )
        assert float(step.aux["mean"]) == pytest.approx(float(aux["mean"]), rel=1e-5)
        updates, other = expected.update(gradients, other, theirs)
        theirs = optax.apply_updates(theirs, updates)
        ours, state = step.params, step.optimizer
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), ours, theirs)


def test_a_step_size_scales_directions():
    identity = optax.identity()
    step = descend(loss, identity, PARAMS, identity.init(PARAMS), X, 1.0, step_size=0.25)
    gradients = jax.grad(lambda params: loss(params, X, 1.0)[0])(PARAMS)
    jax.tree.map(
        lambda p, g, new: np.testing.assert_allclose(new, p - 0.25 * g, rtol=1e-6),
        PARAMS,
        gradients,
        step.params,
    )
