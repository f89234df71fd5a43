"""Arrays of a version as the blocks that devices of a learner held, read block by block."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np

Nest = Any
Place = tuple[slice, ...]
"""The part of an array, with both ends of every dimension."""


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array whose blocks lie apart, of which a device is given only what it holds.

    `numpy.asarray` puts all of it together.

    Attributes:
      shape: of the whole array.
      dtype: of it.
      blocks: places, which cover the array once, and values of each: a numpy array, or what
        `numpy.asarray` makes one of when it is asked for, as of another host.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    blocks: tuple[tuple[Place, Any], ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self, index: Place | None = None) -> np.ndarray:
        """A part of the array; where it lies in one block, that block's memory. None: all of it."""
        index = tuple(slice(None) for _ in self.shape) if index is None else index
        ranges = [range(size)[one] for one, size in zip(index, self.shape, strict=True)]
        found: np.ndarray | None = None
        for place, values in self.blocks:
            pairs = list(zip(ranges, place, strict=True))
            both = [(max(r.start, p.start), min(r.stop, p.stop)) for r, p in pairs]
            if any(start >= stop for start, stop in both):
                continue
            inside = tuple(
                slice(a - p.start, b - p.start) for (a, b), p in zip(both, place, strict=True)
            )
            part = np.asarray(values)[inside]
            if part.shape == tuple(map(len, ranges)):
                return part
            if found is None:
                found = np.empty([*map(len, ranges)], self.dtype)
            at = tuple(
                slice(a - r.start, b - r.start) for (a, b), r in zip(both, ranges, strict=True)
            )
            found[at] = part
        return np.empty([*map(len, ranges)], self.dtype) if found is None else found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        whole = self.read()
        return np.array(whole, dtype) if copy else np.asarray(whole, dtype)


def blocks_of(array: Any) -> list[tuple[Place, Any]]:
    """The blocks of an array, each once, from a device that this process has."""
    if not isinstance(array, jax.Array) or len(array.sharding.device_set) == 1:
        return [(tuple(slice(0, size) for size in array.shape), array)]
    held: dict[tuple[int, ...], tuple[Place, Any]] = {}
    for shard in array.addressable_shards:
        pairs = zip(shard.index, array.shape, strict=True)
        place = tuple(slice(*one.indices(size)[:2]) for one, size in pairs)
        held.setdefault(tuple(one.start for one in place), (place, shard.data))
    return list(held.values())


def gathered(variables: Nest) -> Nest:
    """Variables whose arrays are put together, for devices that hold them whole."""
    return jax.tree.map(
        lambda leaf: np.asarray(leaf) if isinstance(leaf, StoredArray) else leaf, variables
    )
