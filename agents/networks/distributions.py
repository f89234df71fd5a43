"""Distributions over actions: records of pure functions of their parameters.

Written for one action; batch with `jax.vmap`. D: action dimensions, A: choices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from .core import describe


class Distribution(NamedTuple):
    """A family of distributions; `p` below are its parameters, as the network gives them.

    Attributes:
      num_parameters: size of the network's last layer.
      sample: `(p, key) -> action`.
      mode: `p -> action`, the likeliest.
      log_prob: `(p, action) -> []`.
      entropy: `p -> []`, in nats.
      kl: `(p, q) -> []`, the divergence of the distribution of q from that of p, in nats.
      free_parameters: how many further parameters the family has that do not depend on the
        observation; they stand behind those of the network in `p`.
      joint: `(p, key) -> (action, log_prob)` where it is not `sample` and then `log_prob`.
      decouple: `(p, old) -> (parameters, ...)`, each that of `p` in one respect and `old` in all
        others, for who limits each by itself: the means and the deviations of normal distributions.
    """

    num_parameters: int
    sample: Callable[[jax.Array, jax.Array], jax.Array]
    mode: Callable[[jax.Array], jax.Array]
    log_prob: Callable[[jax.Array, jax.Array], jax.Array]
    entropy: Callable[[jax.Array], jax.Array]
    kl: Callable[[jax.Array, jax.Array], jax.Array]
    free_parameters: int = 0
    joint: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]] | None = None
    decouple: Callable[[jax.Array, jax.Array], tuple[jax.Array, ...]] = lambda p, old: (p,)

    def sample_and_log_prob(self, p: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """An action and its log-probability [], through both of which gradients flow."""
        if self.joint is not None:
            return self.joint(p, key)
        action = self.sample(p, key)
        return action, self.log_prob(p, action)


def categorical(num_values: int) -> Distribution:
    """One of A choices, from logits [A]; actions are int32 []."""

    def log_prob(logits, action):
        return jax.nn.log_softmax(logits)[action]

    def entropy(logits):
        log_probs = jax.nn.log_softmax(logits)
        return -jnp.sum(jnp.exp(log_probs) * log_probs)

    def kl(p, q):
        log_probs = jax.nn.log_softmax(p)
        return jnp.sum(jnp.exp(log_probs) * (log_probs - jax.nn.log_softmax(q)))

    return Distribution(
        num_values,
        lambda logits, key: jax.random.categorical(key, logits).astype(jnp.int32),
        lambda logits: jnp.argmax(logits).astype(jnp.int32),
        log_prob,
        entropy,
        kl,
    )


def independent_categoricals(num_values: tuple[int, ...]) -> Distribution:
    """D choices at once, of A_1, ..., A_D values; actions are int32 [D]."""
    parts = [categorical(number) for number in num_values]
    ends = np.cumsum(num_values)[:-1].tolist()

    def split(logits):
        return jnp.split(logits, ends)

    def sample(logits, key):
        keys = jax.random.split(key, len(parts))
        each = zip(parts, split(logits), keys, strict=True)
        return jnp.stack([part.sample(x, k) for part, x, k in each])

    return Distribution(
        sum(num_values),
        sample,
        lambda p: jnp.stack([part.mode(x) for part, x in zip(parts, split(p), strict=True)]),
        lambda p, action: sum(
            (part.log_prob(x, a) for part, x, a in zip(parts, split(p), action, strict=True)),
            jnp.zeros(()),
        ),
        lambda p: sum(
            (part.entropy(x) for part, x in zip(parts, split(p), strict=True)), jnp.zeros(())
        ),
        lambda p, q: sum(
            (part.kl(x, y) for part, x, y in zip(parts, split(p), split(q), strict=True)),
            jnp.zeros(()),
        ),
    )


def gaussian(shape: tuple[int, ...]) -> Distribution:
    """Independent normal distributions of any real action of this shape, D numbers in all.

    The network gives the means [D]; the logarithms of the standard deviations [D] do not depend
    on the observation (Schulman et al., 2017, section 6.1).
    """
    size = math.prod(shape)

    def log_prob(p, action):
        mean, log_std = p[:size], p[size:]
        z = (jnp.ravel(action) - mean) * jnp.exp(-log_std)
        return -jnp.sum(0.5 * z**2 + log_std + 0.5 * math.log(2 * math.pi))

    def sample(p, key):
        return (p[:size] + jnp.exp(p[size:]) * jax.random.normal(key, (size,))).reshape(shape)

    def kl(p, q):
        log_ratio = p[size:] - q[size:]
        distance = (p[:size] - q[:size]) * jnp.exp(-q[size:])
        return jnp.sum(0.5 * (jnp.exp(2 * log_ratio) + distance**2 - 1.0) - log_ratio)

    def decouple(p, old):
        return jnp.concatenate([p[:size], old[size:]]), jnp.concatenate([old[:size], p[size:]])

    return Distribution(
        size,
        sample,
        lambda p: p[:size].reshape(shape),
        log_prob,
        lambda p: jnp.sum(p[size:] + 0.5 * math.log(2 * math.pi * math.e)),
        kl,
        free_parameters=size,
        decouple=decouple,
    )


_LOG_STDS = (-20.0, 2.0)
"""Bounds of the logarithms of a tanh-Gaussian's standard deviations."""
_NODES, _WEIGHTS = np.polynomial.hermite.hermgauss(32)


def tanh_gaussian(minimum: np.ndarray, maximum: np.ndarray) -> Distribution:
    """Independent normal distributions squashed by tanh into a box: SAC's policy.

    Haarnoja et al. (2018), https://arxiv.org/abs/1801.01290, appendix C. The network gives means
    and logarithms of standard deviations [2 D], of numbers before the squashing. What is drawn has
    its probability from those (`joint`), as an action at the bounds in float32 says no more where
    it came from; of such a one `log_prob` gives that of one a little within. The mode is that of
    the numbers before the squashing; the entropy, which has no closed form, is a Gauss-Hermite sum,
    within 0.01 nats a dimension for standard deviations up to 2.

    Args:
      minimum: the least action, of the action's shape.
      maximum: the greatest, likewise.

    Raises:
      ValueError: where a bound is infinite.
    """
    minimum, maximum = np.asarray(minimum, np.float32), np.asarray(maximum, np.float32)
    if not (np.isfinite(minimum).all() and np.isfinite(maximum).all()):
        raise ValueError(
            f"actions lie between {minimum} and {maximum}; a tanh-Gaussian needs finite bounds. "
            "Rescale the environment's actions."
        )
    shape, size = minimum.shape, minimum.size
    middle, half = (minimum + maximum).ravel() / 2, (maximum - minimum).ravel() / 2
    base = gaussian((size,))

    def split(p):
        return jnp.concatenate([p[:size], jnp.clip(p[size:], *_LOG_STDS)])

    def squash(u):
        return (middle + half * jnp.tanh(u)).reshape(shape)

    def log_slope(u):
        """log d squash(u) / du, without 1 - tanh(u)^2, which is 0 where u is large."""
        return 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u)) + jnp.log(half)

    def log_prob_of(p, u):
        return base.log_prob(p, u) - jnp.sum(log_slope(u))

    def log_prob(p, action):
        within = 1.0 - 1e-6
        y = jnp.clip((jnp.ravel(action) - middle) / half, -within, within)
        return log_prob_of(split(p), jnp.arctanh(y))

    def joint(p, key):
        p = split(p)
        u = base.sample(p, key)
        return squash(u), log_prob_of(p, u)

    def entropy(p):
        p = split(p)
        u = p[:size] + math.sqrt(2.0) * jnp.exp(p[size:]) * jnp.float32(_NODES)[:, None]
        slopes = jnp.float32(_WEIGHTS / math.sqrt(math.pi)) @ log_slope(u)
        return base.entropy(p) + jnp.sum(slopes)

    return Distribution(
        2 * size,
        lambda p, key: squash(base.sample(split(p), key)),
        lambda p: squash(p[:size]),
        log_prob,
        entropy,
        # Squashed alike, two distributions are as far apart as before.
        lambda p, q: base.kl(split(p), split(q)),
        joint=joint,
        decouple=base.decouple,
    )


def for_actions(agent: str, spec: specs.Array, *, squashed: bool = False) -> Distribution:
    """The family for an action spec.

    Args:
      agent: its name, for the message.
      spec: of the actions.
      squashed: whether real numbers stay within their bounds (`tanh_gaussian`), of which the
        deviations depend on the observation; else they know none (`gaussian`).

    Raises:
      ValueError: where there is none, saying which there are.
    """
    if isinstance(spec, specs.DiscreteArray):
        return categorical(int(spec.num_values))
    if squashed and isinstance(spec, specs.BoundedArray) and spec.dtype.kind == "f":
        bounds = (np.broadcast_to(x, spec.shape) for x in (spec.minimum, spec.maximum))
        return tanh_gaussian(*bounds)
    if isinstance(spec, specs.Array) and np.issubdtype(spec.dtype, np.floating):
        return gaussian(spec.shape)
    if (
        isinstance(spec, specs.BoundedArray)
        and np.issubdtype(spec.dtype, np.integer)
        and len(spec.shape) == 1
        and not np.any(spec.minimum)
    ):
        return independent_categoricals(
            tuple(int(x) + 1 for x in np.broadcast_to(spec.maximum, spec.shape))
        )
    raise ValueError(
        f"{agent} drives one discrete action, several at once (MultiDiscrete), or a box of real "
        f"numbers; this environment's actions are {describe(spec)}."
    )
