"""Maximum a posteriori policy optimisation, for one state; batch with `jax.vmap`. N: actions.

Abdolmaleki et al. (2018), https://arxiv.org/abs/1806.06920, with the constraints of
https://arxiv.org/abs/1812.02256. Duals are multipliers above 0, learned by descent on what these
functions give.
"""

from __future__ import annotations

import math

import chex
import jax


def improved_weights(q: jax.Array, temperature: jax.Array) -> jax.Array:
    """The weights of actions that the old policy drew under a better one.

    The E-step: equation 8 of the first paper, at samples. No gradient flows through it.

    Args:
      q: [N] values of the actions.
      temperature: [] the lower, the more the best action counts.

    Returns:
      [N], of sum 1.
    """
    chex.assert_rank([q, temperature], [1, 0])
    return jax.lax.stop_gradient(jax.nn.softmax(q / temperature))


def temperature_dual(q: jax.Array, temperature: jax.Array, epsilon: float) -> jax.Array:
    """Least where the improved policy is as far from the old one as it may be.

    Equation 9 of the first paper, at samples.

    Args:
      q: [N] values of actions that the old policy drew; no gradient flows through them.
      temperature: []
      epsilon: the greatest KL of the improved policy from the old one, in nats.

    Returns:
      []
    """
    chex.assert_rank([q, temperature], [1, 0])
    scaled = jax.lax.stop_gradient(q) / temperature
    average = jax.scipy.special.logsumexp(scaled) - math.log(q.shape[0])
    return temperature * (epsilon + average)


def multiplier_dual(kl: jax.Array, multiplier: jax.Array, epsilon: jax.Array) -> jax.Array:
    """Least with a great penalty where a KL is greater than it may be, and with none elsewhere.

    Args:
      kl: [...] of the learning policy from the old one, in nats; no gradient flows through it.
      multiplier: [...] the penalty of a nat, which the policy's loss adds for its KL.
      epsilon: [...] the greatest KL wanted.

    Returns:
      [...]
    """
    return multiplier * (epsilon - jax.lax.stop_gradient(kl))
