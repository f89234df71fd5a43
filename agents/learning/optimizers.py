"""Optimizers of optax in forms of fewer operations."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from ..networks import hyperspherical


def scale_by_adam(
    b1: float = 0.9, b2: float = 0.999, epsilon: float = 1e-8
) -> optax.GradientTransformation:
    """As `optax.scale_by_adam`, with its state, in one division a parameter instead of three.

    The bias corrections are the same for all parameters, so they go into one factor and epsilon:
    the form that Kingma and Ba (2015, https://arxiv.org/abs/1412.6980) give at the end of section
    2, with epsilon scaled so that it is the same as in the first.
    """

    def update(gradients, state, params=None):
        del params
        count = optax.safe_increment(state.count)
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, gradients)
        nu = jax.tree.map(lambda n, g: b2 * n + (1 - b2) * (g * g), state.nu, gradients)
        root = jnp.sqrt(_one_less(b2, count))
        factor, shift = root / _one_less(b1, count), epsilon * root
        scaled = jax.tree.map(
            lambda m, n: factor.astype(m.dtype) * (m / (jnp.sqrt(n) + shift.astype(n.dtype))),
            mu,
            nu,
        )
        return scaled, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(optax.scale_by_adam().init, update)


def _one_less(base: float, count: jax.Array) -> jax.Array:
    """1 - base ** count, [] float32.

    With a count that is no greater than one that gives 1: a power that is too small for a float
    takes XLA on CPU 6 us, any other less than one.
    """
    enough = math.ceil(-26 / math.log2(base))
    return 1 - base ** jnp.minimum(count, enough)


def adam(
    learning_rate: float | Callable[[jax.Array], jax.Array], epsilon: float = 1e-8
) -> optax.GradientTransformation:
    """`optax.adam`, by `scale_by_adam`; parameters of norm 1 keep it, see `keep_units`."""
    return keep_units(
        optax.chain(scale_by_adam(epsilon=epsilon), optax.scale_by_learning_rate(learning_rate))
    )


def keep_units(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimizer, with its state, whose steps end on the sphere where parameters lie on one.

    Those are the parameters named `hyperspherical.UNIT`; others have the steps that they had.
    """

    def update(gradients, state, params=None):
        steps, state = optimizer.update(gradients, state, params)
        if not hyperspherical.has_units(steps):
            return steps, state
        if params is None:
            raise ValueError(f"Steps of parameters named {hyperspherical.UNIT} need `params`.")
        return hyperspherical.project_steps(steps, params), state

    return optax.GradientTransformation(optimizer.init, update)
