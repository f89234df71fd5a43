"""Loops of several runs that step together, each a lane of `jax.vmap` with a named axis.

A `lax.while_loop` whose lanes end apart is batched by a choice between old and new for all that it
carries, in every turn: that copies a replay to add one row. Here the predicate is of all lanes
together, and the body is told whether its lane goes on, so that it masks the little it writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Nest = Any
Active = jax.Array | bool
"""True for a lane that goes on: bool []; the Python value where there are no lanes."""


def any_lane(flag: jax.Array, axis: str | None) -> jax.Array:
    """Returns bool [], the same in all lanes: whether the flag is set in one.

    Args:
      flag: bool [], of each lane.
      axis: name of the lanes' axis; None: there is one lane.
    """
    if axis is None:
        return flag
    return jax.lax.psum(flag.astype(jnp.int32), axis) > 0


def while_any(
    goes_on: Callable[[Nest], jax.Array],
    body: Callable[[Nest, Active], Nest],
    carry: Nest,
    axis: str | None,
) -> Nest:
    """Runs a `lax.while_loop` for as long as one lane goes on.

    Args:
      goes_on: `(carry) -> bool []`.
      body: `(carry, active) -> carry`; has to change nothing where its lane is not active.
      carry: of the loop.
      axis: name of the lanes' axis; None: there is one lane, which is always active.
    """
    if axis is None:
        return jax.lax.while_loop(goes_on, lambda carry: body(carry, True), carry)
    return jax.lax.while_loop(
        lambda carry: any_lane(goes_on(carry), axis),
        lambda carry: body(carry, goes_on(carry)),
        carry,
    )


def choose(active: Active, new: Nest, old: Nest) -> Nest:
    """Returns `new` in lanes that are active, `old` elsewhere; what has not changed, as it is."""
    if active is True:
        return new
    return jax.tree.map(lambda a, b: a if a is b else jnp.where(active, a, b), new, old)
