"""Carries a plan out between the devices of this process, shard to shard.

Blocks go from device to device: `jax.device_put` of a whole array to other devices brings it to the
host wherever a block at the target is none at the source, and within a mesh XLA may gather it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .layout import Block
from .plan import TransferPlan
from .schedule import Copy

_ALIGN = 64  # Bytes that XLA asks of memory that it uses in place.


def execute(
    plan: TransferPlan,
    arrays: Mapping[str, jax.Array],
    shardings: Mapping[str, Any],
    *,
    may_alias: bool = True,
    in_host_memory: bool | None = None,
) -> dict[str, jax.Array]:
    """Returns the arrays in the plan's target layouts.

    Besides both layouts a device holds no more than a shard at a time.

    Args:
      plan: of these arrays, with the ids of jax's devices as numbers.
      arrays: in its source layouts; they stay as they are.
      shardings: of the results, all on devices of this process.
      may_alias: False: what a device has already is copied too, as the arrays will be donated.
      in_host_memory: True if the host cuts blocks out and puts them together, False if devices do;
        None: the host where all devices are CPUs.

    Raises:
      ValueError: if a device belongs to another process.
    """
    devices = {
        device.id: device
        for sharding in (*shardings.values(), *(array.sharding for array in arrays.values()))
        for device in sharding.device_set
    }
    here = jax.process_index()
    if far := [number for number, one in devices.items() if one.process_index != here]:
        raise ValueError(f"device {far[0]} is of another process; only within one arrays are moved")
    if in_host_memory is None:
        in_host_memory = all(device.platform == "cpu" for device in devices.values())
    blocks = _HostBlocks() if in_host_memory else _DeviceBlocks()
    held = {
        (name, shard.device.id): shard.data
        for name, array in arrays.items()
        for shard in array.addressable_shards
    }
    made: dict[tuple[str, int], Any] = {}
    for each in plan.rounds:
        _round(plan, each, held, made, blocks, devices)
    results: dict[str, jax.Array] = {}
    for name, sharding in shardings.items():
        shards: list[Any] = []
        for number, block in plan.target[name].blocks.items():
            shard = made.pop((name, number), None)
            if shard is None and block == plan.source[name].blocks.get(number):
                shard = held[name, number]
                if not may_alias:
                    shard = jax.device_put(shard, devices[number], may_alias=False)
            elif shard is None:  # An array without elements.
                shard = blocks.empty(block, plan.target[name].dtype, devices[number])
            shards.append(jax.device_put(shard, devices[number]))
        shape = plan.target[name].shape
        results[name] = jax.make_array_from_single_device_arrays(shape, sharding, shards)
    return results


def _round(
    plan: TransferPlan,
    copies: tuple[Copy, ...],
    held: Mapping[tuple[str, int], jax.Array],
    made: dict[tuple[str, int], Any],
    blocks: Any,
    devices: Mapping[int, jax.Device],
) -> None:
    """Makes the copies of a round, and waits for them.

    Args:
      plan: that they are of.
      copies: of the round.
      held: shards at the source, by array and device.
      made: shards at the target, as far as they are there; added to.
      blocks: cuts out and puts together.
      devices: by number.
    """
    cuts = []
    for copy in copies:
        of = (plan.target if copy.is_relayed else plan.source)[copy.array].blocks[copy.source]
        shard = (made if copy.is_relayed else held)[copy.array, copy.source]
        is_cut, _ = plan.partial(copy)
        cuts.append(blocks.cut(shard, copy.block, of) if is_cut else shard)
    parts = [plan.partial(copy)[1] for copy in copies]
    moved = blocks.move(cuts, [devices[copy.target] for copy in copies], parts)
    del cuts
    for number, (copy, is_part) in enumerate(zip(copies, parts, strict=True)):
        at = copy.array, copy.target
        target = plan.target[copy.array]
        if not is_part:
            made[at] = moved[number]
            continue
        whole = target.blocks[copy.target]
        if at not in made:
            made[at] = blocks.empty(whole, target.dtype, devices[copy.target])
        made[at] = blocks.write(made[at], moved[number], copy.block, whole)
        moved[number] = None
    jax.block_until_ready([made[copy.array, copy.target] for copy in copies])


class _DeviceBlocks:
    """Blocks that devices cut out and put together, each its own."""

    def cut(self, shard: jax.Array, block: Block, of: Block) -> jax.Array:
        """A block of a shard, which holds the block `of`."""
        return _cut(shard, _starts(block, of), tuple(stop - start for start, stop in block))

    def move(
        self, values: list[jax.Array], devices: list[jax.Device], parts: list[bool]
    ) -> list[Any]:
        """The values on other devices.

        Args:
          values: blocks.
          devices: where each goes.
          parts: true of those that are to be written into a shard.
        """
        return list(jax.device_put(values, devices))

    def empty(self, block: Block, dtype: str, device: jax.Device) -> jax.Array:
        """A shard to be written to."""
        shape = tuple(stop - start for start, stop in block)
        return jnp.zeros(shape, dtype, device=device)

    def write(self, shard: jax.Array, value: jax.Array, block: Block, of: Block) -> jax.Array:
        """The shard, which is given away, with a block of it replaced."""
        return _write(shard, value, _starts(block, of))


class _HostBlocks:
    """Blocks of CPU devices, which the host cuts out and puts together without compiling."""

    def cut(self, shard: Any, block: Block, of: Block) -> np.ndarray:
        """As of `_DeviceBlocks`; where the shard lies, and not copied."""
        return np.asarray(shard)[_slices(block, of)]

    def move(self, values: list[Any], devices: list[jax.Device], parts: list[bool]) -> list[Any]:
        """As of `_DeviceBlocks`; what is to be written into a shard is read where it lies."""
        moved = []
        for value, device, is_part in zip(values, devices, parts, strict=True):
            if isinstance(value, np.ndarray) and not is_part:
                # jax may use memory where it lies, and this is the source's.
                view, value = value, _aligned(value.shape, value.dtype)
                np.copyto(value, view)
            moved.append(value if is_part else jax.device_put(value, device))
        return moved

    def empty(self, block: Block, dtype: str, device: jax.Device) -> np.ndarray:
        """As of `_DeviceBlocks`."""
        return _aligned([stop - start for start, stop in block], jnp.dtype(dtype))

    def write(self, shard: np.ndarray, value: Any, block: Block, of: Block) -> np.ndarray:
        """As of `_DeviceBlocks`; in place."""
        shard[_slices(block, of)] = np.asarray(value)
        return shard


def _aligned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Memory that XLA uses in place."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + _ALIGN, np.uint8)
    start = -memory.ctypes.data % _ALIGN
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def _starts(block: Block, of: Block) -> np.ndarray:
    """Where a block begins in another: int32 [dimensions]."""
    starts = [start - base for (start, _), (base, _) in zip(block, of, strict=True)]
    return np.array(starts, np.int32)


def _slices(block: Block, of: Block) -> tuple[slice, ...]:
    """The place of a block in another."""
    pairs = zip(block, of, strict=True)
    return tuple(slice(start - base, stop - base) for (start, stop), (base, _) in pairs)


@functools.partial(jax.jit, static_argnames="sizes")
def _cut(shard: jax.Array, starts: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
    return jax.lax.dynamic_slice(shard, list(starts), sizes)


@functools.partial(jax.jit, donate_argnums=0)
def _write(shard: jax.Array, value: jax.Array, starts: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice(shard, value, list(starts))
