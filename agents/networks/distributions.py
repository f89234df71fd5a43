"""Distributions over actions: records of pure functions of their parameters.

Written for one action; batch with `jax.vmap`. D: action dimensions, A: choices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...environments.action_masks import num_values
from .. import action_spaces

Nest = Any


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
      respects: those, in the order of `decouple`.
    """

    num_parameters: int
    sample: Callable[[jax.Array, jax.Array], Nest]
    mode: Callable[[jax.Array], Nest]
    log_prob: Callable[[jax.Array, Nest], jax.Array]
    entropy: Callable[[jax.Array], jax.Array]
    kl: Callable[[jax.Array, jax.Array], jax.Array]
    free_parameters: int = 0
    joint: Callable[[jax.Array, jax.Array], tuple[Nest, jax.Array]] | None = None
    decouple: Callable[[jax.Array, jax.Array], tuple[jax.Array, ...]] = lambda p, old: (p,)
    respects: tuple[Literal["whole", "mean", "deviation"], ...] = ("whole",)

    def sample_and_log_prob(self, p: jax.Array, key: jax.Array) -> tuple[Nest, jax.Array]:
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


def independent_categoricals(
    num_values: tuple[int, ...], least: np.ndarray | None = None
) -> Distribution:
    """D choices at once, of A_1, ..., A_D values, from logits [A_1 + ... + A_D].

    Args:
      num_values: A_1, ..., A_D.
      least: the least action, D integers in the shape and dtype of actions; None: zeros, int32 [D].
    """
    size, most = len(num_values), max(num_values, default=1)
    least = np.zeros(size, np.int32) if least is None else np.asarray(least)
    offset = least.ravel().astype(np.int32)
    one, ends = categorical(most), np.cumsum(num_values)[:-1].tolist()

    def rows(p):
        """Logits [D, A] with no probability for values that a choice does not have."""
        if all(number == most for number in num_values):
            return p.reshape(size, most)
        # Below the logits of illegal values, so that where none is legal it is still none of these.
        pad = functools.partial(jnp.pad, constant_values=-2e9)
        return jnp.stack([pad(x, (0, most - len(x))) for x in jnp.split(p, ends)])

    def action(chosen):
        return (chosen + offset).astype(least.dtype).reshape(least.shape)

    def log_prob(p, action):
        chosen = jnp.ravel(action).astype(jnp.int32) - offset
        return jnp.sum(jax.vmap(one.log_prob)(rows(p), chosen))

    return Distribution(
        sum(num_values),
        lambda p, key: action(jax.vmap(one.sample)(rows(p), jax.random.split(key, size))),
        lambda p: action(jax.vmap(one.mode)(rows(p))),
        log_prob,
        lambda p: jnp.sum(jax.vmap(one.entropy)(rows(p))),
        lambda p, q: jnp.sum(jax.vmap(one.kl)(rows(p), rows(q))),
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
        respects=("mean", "deviation"),
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
        respects=base.respects,
    )


def product(parts: Nest) -> Distribution:
    """Independent distributions of the leaves of a nest of actions, as one.

    Log-probabilities, entropies and divergences are sums over leaves, and every leaf is drawn with
    a key of its own. Parameters are those that the network gives, leaf by leaf, and behind them
    those that do not depend on the observation. `decouple` separates every respect of every leaf,
    so that each can have its own limit (Neunert et al., 2020, https://arxiv.org/abs/2001.00449).

    Args:
      parts: nest of the distributions.
    """
    families, structure = jax.tree.flatten(parts, is_leaf=lambda x: isinstance(x, Distribution))
    size = sum(family.num_parameters for family in families)
    ends = np.cumsum([family.num_parameters for family in families])[:-1].tolist()
    free_ends = np.cumsum([family.free_parameters for family in families])[:-1].tolist()

    def split(p):
        """The parameters of each leaf."""
        given, free = jnp.split(p[:size], ends), jnp.split(p[size:], free_ends)
        return [jnp.concatenate(both) for both in zip(given, free, strict=True)]

    def join(each):
        """The inverse of `split`."""
        parts = [
            jnp.split(x, [family.num_parameters]) for family, x in zip(families, each, strict=True)
        ]
        return jnp.concatenate([*(given for given, _ in parts), *(free for _, free in parts)])

    def of_each(method, *arguments):
        """Calls a method of each leaf's distribution with its arguments."""
        rows = zip(families, *arguments, strict=True)
        return [getattr(family, method)(*row) for family, *row in rows]

    def nest(actions):
        return jax.tree.unflatten(structure, actions)

    def draw(method, p, key):
        return of_each(method, split(p), jax.random.split(key, len(families)))

    def joint(p, key):
        actions, log_probs = zip(*draw("sample_and_log_prob", p, key), strict=True)
        return nest(actions), sum(log_probs)

    def decouple(p, old):
        before = split(old)
        return tuple(
            join([*before[:i], part, *before[i + 1 :]])
            for i, parts in enumerate(of_each("decouple", split(p), before))
            for part in parts
        )

    return Distribution(
        size,
        lambda p, key: nest(draw("sample", p, key)),
        lambda p: nest(of_each("mode", split(p))),
        lambda p, action: sum(of_each("log_prob", split(p), jax.tree.leaves(action))),
        lambda p: sum(of_each("entropy", split(p))),
        lambda p, q: sum(of_each("kl", split(p), split(q))),
        free_parameters=sum(family.free_parameters for family in families),
        joint=joint,
        decouple=decouple,
        respects=tuple(respect for family in families for respect in family.respects),
    )


def for_actions(agent: str, actions: Nest, *, squashed: bool = False) -> Distribution:
    """The family for an action spec; of a nest, the product of those of its leaves.

    Args:
      agent: its name, for the message.
      actions: their spec.
      squashed: whether real numbers stay within their bounds, where those are finite
        (`tanh_gaussian`), and the deviations depend on the observation; else they know no bounds
        (`gaussian`).

    Raises:
      ValueError: where there is none, saying which there are.
    """

    def family(spec):
        kind = action_spaces.kind_of(spec)
        if kind is action_spaces.CHOICE:
            return categorical(int(spec.num_values))
        if kind is action_spaces.CHOICES:
            least = np.broadcast_to(spec.minimum, spec.shape).astype(spec.dtype)
            return independent_categoricals(num_values(spec), least)
        if squashed and kind is action_spaces.BOX:
            bounds = (np.broadcast_to(x, spec.shape) for x in (spec.minimum, spec.maximum))
            return tanh_gaussian(*bounds)
        return gaussian(spec.shape)

    kinds = action_spaces.kinds_of(actions)
    if not kinds <= {*action_spaces.DISTRIBUTED}:
        raise action_spaces.refusal(agent, actions, *action_spaces.DISTRIBUTED)
    families = jax.tree.map(family, actions)
    return product(families) if action_spaces.NEST in kinds else families
