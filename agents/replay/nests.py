"""Nests of arrays as lists of leaves, and memory for batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

Nest = Any
_ALIGNMENT = 64  # XLA on the CPU takes arrays aligned like this without a copy.


class Structure:
    """The shape of a nest, taken from a nest of specs (anything with `shape` and `dtype`)."""

    def __init__(self, specs: Nest, name: str) -> None:
        treedef: Any  # jax does not type it.
        self.specs, treedef = jax.tree_util.tree_flatten(specs)
        self._treedef = treedef
        self.name = name
        self._is_leaf = treedef == jax.tree_util.tree_structure(0)

    def flatten(self, value: Nest) -> list[Any]:
        """The leaves of a nest of this structure."""
        if self._is_leaf:
            return [value]
        return self._treedef.flatten_up_to(value)

    def unflatten(self, leaves: Sequence[Any]) -> Nest:
        """The nest of these leaves."""
        if self._is_leaf:
            return leaves[0]
        return self._treedef.unflatten(leaves)

    def check(self, value: Nest, leading: tuple[int, ...]) -> None:
        """Compares a nest with the specs.

        Raises:
          ValueError: If the structure, or the shape of a leaf behind `leading`, differs.
        """
        try:
            leaves = self.flatten(value)
        except ValueError as error:
            raise ValueError(
                f"{self.name} has not the structure of its spec, {self._treedef}: {error}"
            ) from None
        for leaf, spec in zip(leaves, self.specs, strict=True):
            if np.shape(leaf) != (*leading, *spec.shape):
                raise ValueError(
                    f"{self.name} has a leaf of shape {np.shape(leaf)} where its spec asks for "
                    f"{(*leading, *spec.shape)}."
                )


class Batches:
    """Makes uninitialised arrays of the same kinds again and again, each aligned to 64 bytes.

    The arrays of one call share one allocation and belong to the caller.
    """

    def __init__(self, specs: Sequence[tuple[tuple[int, ...], Any]]) -> None:
        """Takes shapes, without the leading dimensions of a batch, and dtypes."""
        self._specs = [(tuple(shape), np.dtype(dtype)) for shape, dtype in specs]
        self._plans: dict[tuple[int, ...], tuple[int, list[tuple[int, tuple[int, ...]]]]] = {}

    def make(self, leading: tuple[int, ...]) -> list[np.ndarray]:
        """One array for every spec, with the leading dimensions."""
        plan = self._plans.get(leading)
        if plan is None:
            offset, places = 0, []
            for shape, dtype in self._specs:
                places.append((offset, (*leading, *shape)))
                size = int(np.prod((*leading, *shape), dtype=np.int64)) * dtype.itemsize
                offset += -(-size // _ALIGNMENT) * _ALIGNMENT
            plan = self._plans[leading] = offset, places
        total, places = plan
        memory = np.empty(total + _ALIGNMENT, np.uint8)
        start = -memory.__array_interface__["data"][0] % _ALIGNMENT
        return [
            np.ndarray(shape, dtype, memory, start + offset)
            for (offset, shape), (_, dtype) in zip(places, self._specs, strict=True)
        ]
