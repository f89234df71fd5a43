"""`Example`: one update step, and the functions that make its arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

#: A pytree of arrays (or of their shapes).
Tree = Any

#: Schedules that make sense for any model trained on a batch.
DATA = ("batch:data", "batch:data,zero2:data", "batch:data,zero3:data")
#: And for any model with matrices to split over a second axis.
DATA_AND_MODEL = (
    *DATA,
    "megatron:model",
    "batch:data,megatron:model",
    "batch:data,megatron:model,zero2:data",
    "batch:data,megatron:model,zero3:data",
)


@dataclasses.dataclass(frozen=True)
class Example:
    """A training step with everything needed to trace, plan and run it.

    The first dimension of every leaf of the batch is the batch's.

    Attributes:
      name: the name in the catalogue.
      update: (state, batch) -> (state, metrics), for one device and the global batch.
      init: key -> state; a dict with at least "params".
      make_batch: key -> batch.
      schedules: schedules worth trying, as text over the axes "data" and "model".
      config: the frozen dataclass of sizes and choices it was made from.
    """

    name: str
    update: Callable[[Tree, Tree], tuple[Tree, Tree]]
    init: Callable[[jax.Array], Tree]
    make_batch: Callable[[jax.Array], Tree]
    schedules: tuple[str, ...]
    config: Any

    @property
    def state_shapes(self) -> Tree:
        """The state as `jax.ShapeDtypeStruct`s; nothing is computed."""
        return jax.eval_shape(self.init, jax.random.PRNGKey(0))

    @property
    def batch_shapes(self) -> Tree:
        """The batch as `jax.ShapeDtypeStruct`s; nothing is computed."""
        return jax.eval_shape(self.make_batch, jax.random.PRNGKey(0))
