"""Spaces of actions: which agents drive which, and functions of an action by its spec.

`DRIVEN` is the table that messages and docs are made from; a new agent is a row of it. A nest of
actions, the Dict or Tuple of Gymnasium, is of the kinds of all its leaves.

Letters: B batch, D numbers; `...`: leading dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from ..environments.action_masks import num_values
from ..environments.specs import AnswerArray, describe

Nest = Any
MOST_VALUES = 2**16
"""Of all choices made at once: each value is an output of a network."""


class Kind(NamedTuple):
    """A kind of actions."""

    name: str
    """As messages have it."""
    spaces: str
    """Gymnasium's, as docs have it."""


CHOICE = Kind("one discrete action", "Discrete")
CHOICES = Kind("several discrete actions at once", "MultiDiscrete, MultiBinary")
BOX = Kind("a box of real numbers with finite bounds", "Box")
REALS = Kind("real numbers without bounds", "Box without bounds")
NEST = Kind("a dict or tuple of these", "Dict, Tuple")
ANSWERS = Kind("answers of tokens to a prompt", "answers of tokens")
DISTRIBUTED = (CHOICE, CHOICES, BOX, REALS, NEST)
"""Those that a distribution of `networks.distributions` is for."""
KINDS = (*DISTRIBUTED, ANSWERS)

DRIVEN: Mapping[str, tuple[Kind, ...]] = {
    "bc": DISTRIBUTED,
    "c51": (CHOICE,),
    "cql": (BOX,),
    "crr": DISTRIBUTED,
    "d4pg": (BOX,),
    "dqn": (CHOICE,),
    "grpo": (ANSWERS,),
    "impala": DISTRIBUTED,
    "iql": DISTRIBUTED,
    "mpo": DISTRIBUTED,
    "muzero": (CHOICE,),
    "ppo": DISTRIBUTED,
    "qrdqn": (CHOICE,),
    "r2d2": (CHOICE,),
    "rainbow": (CHOICE,),
    "sac": (CHOICE, BOX),
    "td3": (BOX,),
}
"""Name of an agent to the kinds of actions that it drives. All agents take all observations."""


def kind_of(spec: specs.Array) -> Kind | None:
    """Returns the kind of one array of actions; None: it is of none."""
    if isinstance(spec, specs.DiscreteArray):
        return CHOICE
    if isinstance(spec, AnswerArray):
        return ANSWERS
    bounded = isinstance(spec, specs.BoundedArray)
    if spec.dtype.kind == "f":
        finite = bounded and np.isfinite(spec.minimum).all() and np.isfinite(spec.maximum).all()
        return BOX if finite else REALS
    if spec.dtype.kind in "iub" and bounded and sum(num_values(spec)) <= MOST_VALUES:
        return CHOICES
    return None


def kinds_of(actions: Nest) -> set[Kind | None]:
    """Returns the kinds of all arrays of a nest, and `NEST` where it is more than an array."""
    if isinstance(actions, specs.Array):
        return {kind_of(actions)}
    leaves = jax.tree.leaves(actions)
    return {NEST, *map(kind_of, leaves)} if leaves else {None}


def driving(actions: Nest) -> list[str]:
    """Returns the names of the agents that drive such actions."""
    return [name for name, kinds in DRIVEN.items() if kinds_of(actions) <= {*kinds}]


def refusal(agent: str, actions: Nest, *kinds: Kind) -> ValueError:
    """Returns the error for actions that an agent cannot drive, in one line.

    Args:
      agent: its name; wrappers may stand before it.
      actions: their spec.
      kinds: those that it drives, where it is none of `DRIVEN`.
    """
    names = [kind.name for kind in DRIVEN.get(agent.rpartition("+")[2], kinds)]
    driven = " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
    return ValueError(
        f"{agent} drives {driven}; this environment's actions are {describe(actions)}."
    )


def draw(actions: Nest, key: jax.Array) -> Nest:
    """Draws an action uniformly; of real numbers without finite bounds, from a standard normal.

    Args:
      actions: their spec.
      key: consumed.
    """
    leaves, structure = jax.tree.flatten(actions)
    keys = [key] if len(leaves) == 1 else jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, list(map(_draw, leaves, keys)))


def _draw(spec: specs.Array, key: jax.Array) -> jax.Array:
    kind = kind_of(spec)
    if kind is REALS:
        return clip(spec, jax.random.normal(key, spec.shape, spec.dtype))
    if kind is BOX:
        return jax.random.uniform(key, spec.shape, spec.dtype, spec.minimum, spec.maximum)
    low, above = (np.asarray(x, np.int32) for x in (spec.minimum, spec.maximum))
    return jax.random.randint(key, spec.shape, low, above + 1, jnp.int32).astype(spec.dtype)


def clip(actions: Nest, chosen: Nest) -> Nest:
    """Returns actions [..., *shape] whose real numbers are moved onto their bounds."""

    def within(spec: specs.Array, x: jax.Array) -> jax.Array:
        is_real = spec.dtype.kind == "f" and isinstance(spec, specs.BoundedArray)
        return jnp.clip(x, spec.minimum, spec.maximum) if is_real else x

    return jax.tree.map(within, actions, chosen)


def flatten(actions: Nest, chosen: Nest) -> jax.Array:
    """Returns actions [B, *shape] of a nest as one vector each, float32 [B, D].

    Choices are one-hot, each as wide as the widest of its array; numbers are taken as they are.
    """

    def flat(spec: specs.Array, x: jax.Array) -> jax.Array:
        kind = kind_of(spec)
        if kind is CHOICE:
            return jax.nn.one_hot(x, spec.num_values)
        x = jnp.reshape(x, (x.shape[0], math.prod(spec.shape)))
        if kind is not CHOICES:
            return x.astype(jnp.float32)
        least = np.broadcast_to(spec.minimum, spec.shape).ravel().astype(np.int32)
        each = jax.nn.one_hot(x.astype(jnp.int32) - least, max(num_values(spec)))
        return each.reshape(x.shape[0], -1)

    leaves = jax.tree.leaves(jax.tree.map(flat, actions, chosen))
    return jnp.concatenate(leaves, axis=-1) if len(leaves) > 1 else leaves[0]


def error(actions: Nest, chosen: Nest, taken: Nest) -> jax.Array:
    """Returns how far chosen actions [B, ...] are from those taken, [], as a mean over leaves.

    Of choices that is the share of those that differ, of real numbers the mean distance.
    """

    def of_leaf(spec: specs.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        wrong = jnp.abs(x - y) if spec.dtype.kind == "f" else x != y
        return jnp.mean(wrong.astype(jnp.float32))

    leaves = jax.tree.leaves(jax.tree.map(of_leaf, actions, chosen, taken))
    return jnp.mean(jnp.stack(leaves))
