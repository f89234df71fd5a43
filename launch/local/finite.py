"""Whether what is learned is still made of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ..errors import DivergedError

Nest = Any


def metrics(learner: Any) -> Mapping[str, float]:
    """The learner's metrics of its last gradient step.

    Raises:
      DivergedError: if a loss or a norm among them is not finite, or another is not and neither
        is the learner's state.
    """
    found: Mapping[str, float] = learner.metrics()
    bad = [name for name, value in found.items() if not math.isfinite(value)]
    for name in bad:
        if "loss" in name or "norm" in name:
            raise DivergedError(f"{name} is {found[name]} {_when(learner)}")
    if bad:
        require(getattr(learner, "state", None), learner)
    return found


def require(state: Nest, learner: Any) -> None:
    """Raises DivergedError where a number of the learner's state is NaN."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        dtype = getattr(leaf, "dtype", None)
        if dtype is None or not jax.dtypes.issubdtype(dtype, np.floating):
            continue
        shards = {"": leaf}
        if isinstance(leaf, jax.Array):
            shards = {str(shard.index): shard.data for shard in leaf.addressable_shards}
        if any(np.isnan(np.asarray(shard)).any() for shard in shards.values()):
            where = jax.tree_util.keystr(path)
            raise DivergedError(f"the learner's {where} holds nan {_when(learner)}")


def _when(learner: Any) -> str:
    return f"after {learner.steps:,} gradient steps"
