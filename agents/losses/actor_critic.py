"""Losses of critics of actions, and of policies that they judge. E: critics; `...`: a batch."""

from __future__ import annotations

import math

import chex
import jax
import jax.numpy as jnp


def soft_value(q: jax.Array, log_prob: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """The soft value of a drawn action: the least of its critics' values, and its surprise.

    Haarnoja et al. (2018), https://arxiv.org/abs/1812.05905: bootstrapped from in equation 5, and
    less it is the policy's loss of equation 9. With a temperature of 0 it is the clipped double
    value of Fujimoto et al. (2018), https://arxiv.org/abs/1802.09477, equation 10.

    Args:
      q: [E, ...] values of the action.
      log_prob: [...] of the action, under the policy that drew it.
      temperature: [] what a nat of surprise is worth.

    Returns:
      [...]
    """
    chex.assert_equal_shape([q[0], log_prob])
    return jnp.min(q, axis=0) - temperature * log_prob


def temperature_loss(
    log_temperature: jax.Array, log_prob: jax.Array, target_entropy: jax.Array | float
) -> jax.Array:
    """Raises the temperature of a policy that is surer than it should be, and lowers another's.

    Haarnoja et al. (2018), https://arxiv.org/abs/1812.05905, equation 18, with the logarithm in
    place of the temperature, as its authors' code has it. Only the temperature has a gradient.

    Args:
      log_temperature: [] logarithm of the temperature.
      log_prob: [...] of actions, under the policy that drew them.
      target_entropy: the entropy that the policy is to keep, in nats; [] or [...].

    Returns:
      [...] the loss of each.
    """
    return -log_temperature * jax.lax.stop_gradient(log_prob + target_entropy)


def critic_loss(q: jax.Array, target: jax.Array) -> jax.Array:
    """Half the squared errors of E critics, summed over them.

    Args:
      q: [E, ...] the critics' values.
      target: [...] what all of them should be; no gradient flows through it.

    Returns:
      [...] the loss of each.
    """
    chex.assert_equal_shape([q[0], target])
    return 0.5 * jnp.sum((jax.lax.stop_gradient(target) - q) ** 2, axis=0)


def conservative_gap(q: jax.Array, q_drawn: jax.Array, log_density: jax.Array) -> jax.Array:
    """The gap by which the soft maximum of E critics lies above their values of the data's actions.

    Kumar et al. (2020), https://arxiv.org/abs/2006.04779, equation 4: log of the integral of exp(Q)
    over actions, less Q, summed over critics. The integral is the mean of exp(Q) over densities of
    N drawn actions. Gradients flow through the values alone.

    Args:
      q: [E, ...] of the data's actions.
      q_drawn: [N, E, ...] of drawn ones.
      log_density: [N, ...] of those, in what they were drawn from.

    Returns:
      [...]
    """
    chex.assert_equal_shape([q, q_drawn[0]])
    chex.assert_equal_shape([q_drawn[:, 0], log_density])
    ratios = q_drawn - jax.lax.stop_gradient(log_density)[:, None]
    integral = jax.nn.logsumexp(ratios, axis=0) - math.log(len(q_drawn))
    return jnp.sum(integral - q, axis=0)


def smoothed_action(
    action: jax.Array,
    key: jax.Array,
    *,
    std: float,
    clip: float,
    minimum: jax.Array,
    maximum: jax.Array,
) -> jax.Array:
    """An action with clipped normal noise, within its bounds: a value that is bootstrapped from
    there is that of a neighbourhood.

    Fujimoto et al. (2018), https://arxiv.org/abs/1802.09477, section 5.3.

    Args:
      action: [..., *shape].
      key: of the noise.
      std: its standard deviation, where the action's range is from -1 to 1.
      clip: the noise lies between +- this, likewise.
      minimum: the least action, of the action's shape.
      maximum: the greatest.

    Returns:
      [..., *shape]
    """
    noise = jnp.clip(std * jax.random.normal(key, action.shape, action.dtype), -clip, clip)
    return jnp.clip(action + (maximum - minimum) / 2 * noise, minimum, maximum)
