"""Arrays of a version as the blocks that devices of a learner held, read block by block."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
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


def blocks_of(array: Any, number: int = 0) -> list[tuple[Place, Any]]:
    """The blocks of an array that this process stores, each once, from a device that it has.

    Processes that hold parts of an array store each block once between them: one that several hold
    is stored by each of them in turn.

    Args:
      array: of numpy or of devices, of this process or of several.
      number: of the array among others, from which on turns are counted.
    """
    is_here = not isinstance(array, jax.Array) or array.is_fully_addressable
    if is_here and (not isinstance(array, jax.Array) or len(array.sharding.device_set) == 1):
        return [(tuple(slice(0, size) for size in array.shape), array)]
    holders: dict[tuple[int, ...], list[int]] = {}
    if not is_here:
        for device, index in array.sharding.devices_indices_map(array.shape).items():
            starts = tuple(one.start or 0 for one in index)
            holders.setdefault(starts, []).append(device.process_index)
    turns = {starts: number + turn for turn, starts in enumerate(sorted(holders))}
    held: dict[tuple[int, ...], tuple[Place, Any]] = {}
    for shard in array.addressable_shards:
        pairs = zip(shard.index, array.shape, strict=True)
        place = tuple(slice(*one.indices(size)[:2]) for one, size in pairs)
        starts = tuple(one.start for one in place)
        if holders:
            processes = sorted({*holders[starts]})
            if processes[turns[starts] % len(processes)] != jax.process_index():
                continue
        held.setdefault(starts, (place, shard.data))
    return list(held.values())


def stored(shape: tuple[int, ...], dtype: np.dtype, blocks: Sequence[tuple[Place, Any]]) -> Any:
    """An array of blocks: the values of the only one, where that is the whole array."""
    if len(blocks) == 1 and blocks[0][1].shape == tuple(shape):
        return blocks[0][1]
    return StoredArray(tuple(shape), dtype, tuple(blocks))


def merged(parts: Sequence[Nest]) -> Nest:
    """Variables of the parts that processes stored of them.

    Args:
      parts: the same nests, of arrays and of `StoredArray`s with the blocks of one part.
    """
    if len(parts) == 1:
        return parts[0]

    def merge(*leaves: Any) -> Any:
        whole = next((leaf for leaf in leaves if not isinstance(leaf, StoredArray)), None)
        if whole is not None:
            return whole
        blocks = [block for leaf in leaves for block in leaf.blocks]
        return StoredArray(leaves[0].shape, leaves[0].dtype, tuple(blocks))

    return jax.tree.map(merge, *parts)


def gathered(variables: Nest) -> Nest:
    """Variables whose arrays are put together, for devices that hold them whole."""
    return jax.tree.map(
        lambda leaf: np.asarray(leaf) if isinstance(leaf, StoredArray) else leaf, variables
    )
