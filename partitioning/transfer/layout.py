"""The layout of an array: the block of it that each device holds."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np

from ..ir.trace import path_text

Block = tuple[tuple[int, int], ...]
"""A part of an array: in each dimension where it begins and ends."""


def volume(block: Block) -> int:
    """The number of elements of a block."""
    return math.prod(stop - start for start, stop in block)


def overlap(one: Block, other: Block) -> Block | None:
    """The block that two blocks of an array share; None if they share nothing."""
    found = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return None if any(start >= stop for start, stop in found) else found


@dataclasses.dataclass(frozen=True)
class ArrayLayout:
    """The part of an array that each device holds.

    Attributes:
      shape: of the whole array.
      dtype: name of its dtype.
      blocks: number of a device to the block that it holds. Devices are numbered level by level
        of a topology, the innermost level first.
    """

    shape: tuple[int, ...]
    dtype: str
    blocks: Mapping[int, Block]

    @classmethod
    def of_sharding(cls, shape: Sequence[int], dtype: Any, sharding: Any) -> ArrayLayout:
        """The layout of a jax array; devices have jax's numbers.

        Raises:
          ValueError: if jax cannot lay out this shape so, or the dtype is no number's.
        """
        shape = tuple(shape)
        indices = sharding.devices_indices_map(shape)
        return cls(
            shape,
            _name(dtype),
            {
                device.id: tuple(one.indices(n)[:2] for one, n in zip(at, shape, strict=True))
                for device, at in indices.items()
            },
        )

    @classmethod
    def of_spec(
        cls,
        shape: Sequence[int],
        dtype: Any,
        axes: Mapping[str, int],
        spec: Sequence[Any],
        devices: Sequence[int] | None = None,
    ) -> ArrayLayout:
        """The layout by the axes of a mesh that need not exist.

        Args:
          shape: of the whole array.
          dtype: of it.
          axes: of the mesh, name to size, major to minor.
          spec: of each dimension the axes that share it, as of a `PartitionSpec`.
          devices: numbers of the mesh's devices, row-major; None: from 0 on.

        Raises:
          ValueError: if a dimension cannot be shared evenly, or there is no such axis.
        """
        shape, sizes = tuple(shape), tuple(axes.values())
        count = math.prod(sizes)
        numbers = range(count) if devices is None else devices
        if len(numbers) != count or len(set(numbers)) != count:
            raise ValueError(f"mesh {dict(axes)} needs {count} different devices, not {numbers}")
        shares = [_names(entry) for entry in spec]
        if len(shares) > len(shape):
            raise ValueError(f"the spec {tuple(spec)} has more dimensions than the shape {shape}")
        shares += [()] * (len(shape) - len(shares))
        for dim, names in enumerate(shares):
            if unknown := [name for name in names if name not in axes]:
                raise ValueError(f"mesh {dict(axes)} has no axis {unknown[0]!r}")
            if shape[dim] % (parts := math.prod(axes[name] for name in names)):
                raise ValueError(
                    f"dimension {dim} of the shape {shape} is not a multiple of the {parts} parts "
                    f"of {'*'.join(names)}; shard another dimension, or pad this one"
                )
        blocks = {}
        for place, number in enumerate(numbers):
            at = dict(zip(axes, np.unravel_index(place, sizes), strict=True))
            block = []
            for size, names in zip(shape, shares, strict=True):
                part, parts = 0, 1
                for name in names:
                    part, parts = part * axes[name] + int(at[name]), parts * axes[name]
                block.append((part * size // parts, (part + 1) * size // parts))
            blocks[number] = tuple(block)
        return cls(shape, _name(dtype), blocks)

    @functools.cached_property
    def holders(self) -> dict[Block, list[int]]:
        """The devices that hold each block."""
        found: dict[Block, list[int]] = {}
        for device, block in self.blocks.items():
            found.setdefault(block, []).append(device)
        return found

    @functools.cached_property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(getattr(ml_dtypes, self.dtype, self.dtype)).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * self.itemsize

    def held(self, device: int) -> int:
        """Bytes that a device holds."""
        return volume(self.blocks[device]) * self.itemsize if device in self.blocks else 0

    def __str__(self) -> str:
        parts, copies = "x".join(map(str, self.cuts)), len(self.blocks) // len(self.holders)
        where = "whole" if len(self.holders) == 1 else f"{parts} parts"
        return where + (f", {copies} copies" if copies > 1 else "")

    @property
    def cuts(self) -> list[int]:
        """The number of parts of each dimension."""
        dims = range(len(self.shape))
        return [len({block[dim] for block in self.holders}) for dim in dims]

    def to_json(self) -> dict[str, Any]:
        """A JSON value from which `from_json` makes an equal layout."""
        blocks = [[device, block] for device, block in self.blocks.items()]
        return {"shape": self.shape, "dtype": self.dtype, "blocks": blocks}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ArrayLayout:
        """The layout that `to_json` wrote."""
        blocks = {int(device): _block(block) for device, block in data["blocks"]}
        return cls(tuple(data["shape"]), data["dtype"], blocks)


def input_layouts(
    plan: Any, arguments: Collection[str] = (), devices: Sequence[int] | None = None
) -> dict[str, ArrayLayout]:
    """The layouts of a planned step's inputs but PRNG keys, by their paths; touches no device.

    Args:
      plan: a `partitioning.Plan`.
      arguments: names of those that are asked for; empty: all.
      devices: numbers of the mesh's devices in row-major order; None: from 0 on.
    """
    signature = plan.graph.program.signature
    numbers = range(plan.mesh.size) if devices is None else devices
    order = plan.order or range(plan.mesh.size)
    numbers = [numbers[place] for place in order]
    found = {}
    inputs, start = plan.graph.program.inputs, 0
    for name, specs, tree, end in zip(
        signature.names, plan.input_shardings, signature.in_trees, signature.ends, strict=True
    ):
        leaves = jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, jax.sharding.PartitionSpec))
        places = jax.tree.unflatten(tree, range(end - start))
        paths = jax.tree_util.tree_flatten_with_path(places)[0]
        for (path, _), spec, value in zip(paths, leaves, inputs[start:end], strict=True):
            extended = jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended)
            if (not arguments or name in arguments) and not extended:
                found[path_text((name,), path)] = ArrayLayout.of_spec(
                    value.shape, value.dtype, plan.mesh.axes, spec, numbers
                )
        start = end
    return found


def _names(entry: Any) -> tuple[str, ...]:
    """The axes of an entry of a PartitionSpec."""
    return (entry,) if isinstance(entry, str) else tuple(entry or ())


def _name(dtype: Any) -> str:
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        raise ValueError(f"arrays of {dtype} cannot be cut into blocks; give PRNG keys as words")
    return str(np.dtype(dtype).name)


def _block(data: Sequence[Sequence[int]]) -> Block:
    return tuple((int(start), int(stop)) for start, stop in data)
