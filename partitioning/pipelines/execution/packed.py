"""The state of a pipelined step, packed for the program of all devices.

A state is a nest of arrays of their own shapes, each on the devices of its stage alone. One program
of all devices takes arrays of which every device has a part: each stage packs its arrays into one
part for each dtype. Whoever runs many steps holds the state packed, and unpacks it to save it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from ...ir.execute import spec_of
from ...ir.program import Value
from ...mesh import Mesh
from ..stages.microbatches import MICROBATCH
from .flat import Flat, FlatLayout, shaped
from .spmd import PipelineProgram


class PackedState(NamedTuple):
    """The state of a step on all devices."""

    stages: Flat
    """[devices * size] by dtype: the arrays that one stage alone holds."""
    shared: tuple[Any, ...]
    """The arrays that every stage holds, in order."""


class StatePacking:
    """Packs and unpacks the state of a pipelined step.

    Args:
      program: of one device.
      mesh: its mesh, with real devices.

    Attributes:
      whole: the devices.
      shardings: for each array of the state; one of a stage lies on the devices of that stage.
      stages: for each array of the state its stage, or None.
      shapes: of the packed state, `jax.ShapeDtypeStruct` with shardings.
      specs: of the packed state, over the mesh.
    """

    def __init__(self, program: PipelineProgram, mesh: Mesh):
        self._program = program
        self.whole = mesh.jax_mesh()
        at = list(mesh.axes).index(program.axis)
        devices = self.whole.devices
        self._meshes = [
            jax.sharding.Mesh(devices.take([i], at), self.whole.axis_names)
            for i in range(devices.shape[at])
        ]
        self._is_here = [
            any(d.process_index == jax.process_index() for d in m.devices.flat)
            for m in self._meshes
        ]
        place = {v: i for i, packing in enumerate(program.owned) for v in packing.values}
        self.stages = tuple(place.get(v) for v in program.state)
        self.shardings = tuple(map(self.sharding, program.state, self.stages))
        each = PartitionSpec(self.whole.axis_names)
        self._each = dict.fromkeys(program.sizes, each)
        shared = tuple(v for v in program.state if v not in place)
        self.specs = PackedState(self._each, tuple(map(spec, shared)))
        everywhere = NamedSharding(self.whole, each)
        self.shapes = PackedState(
            {
                name: jax.ShapeDtypeStruct((size * self.whole.size,), name, sharding=everywhere)
                for name, size in program.sizes.items()
            },
            tuple(map(self.shape, shared)),
        )
        self._packs = [self._packer(i) for i in range(len(self._meshes))]
        self._unpacks = [self._unpacker(i) for i in range(len(self._meshes))]

    def sharding(self, value: Value, stage: int | None = None) -> NamedSharding:
        """The sharding of a value on the devices of a stage, or of all."""
        return NamedSharding(self.whole if stage is None else self._meshes[stage], spec(value))

    def shape(self, value: Value) -> jax.ShapeDtypeStruct:
        """The shape of an input that every stage holds, with its sharding."""
        shape = self._program.whole_shape(value)
        return jax.ShapeDtypeStruct(shape, value.dtype, sharding=self.sharding(value))

    def _packer(self, stage: int) -> Callable[[list[Any]], Flat]:
        """A program that packs the arrays of a stage."""
        packing, sizes = self._program.owned[stage], self._program.sizes

        def pack(arrays: list[Any]) -> Flat:
            return packing.pack(dict(zip(packing.values, arrays, strict=True)), sizes)

        specs = [spec(v) for v in packing.values]
        return jax.jit(mapped(pack, self._meshes[stage], (specs,), self._each))

    def _unpacker(self, stage: int) -> Callable[[Flat], list[Any]]:
        """A program that unpacks the arrays of a stage."""
        packing: FlatLayout = self._program.owned[stage]

        def unpack(flat: Flat) -> list[Any]:
            return list(packing.unpack(flat).values())

        specs = [spec(v) for v in packing.values]
        return jax.jit(mapped(unpack, self._meshes[stage], (self._each,), specs))

    def pack(self, arrays: Sequence[Any]) -> PackedState:
        """Packs a state; every process of several must call it.

        Args:
          arrays: the state, each array where it belongs. They stay as they are.
        """
        given = dict(zip(self._program.state, arrays, strict=True))
        packed = [
            pack([given[v] for v in packing.values])
            for pack, packing, here in zip(
                self._packs, self._program.owned, self._is_here, strict=True
            )
            if here
        ]
        found: Flat = {}
        for name, shape in self.shapes.stages.items():
            parts = [shard.data for flat in packed for shard in flat[name].addressable_shards]
            found[name] = jax.make_array_from_single_device_arrays(
                shape.shape, shape.sharding, parts
            )
        pairs = zip(arrays, self.stages, strict=True)
        return PackedState(found, tuple(array for array, stage in pairs if stage is None))

    def unpack(self, packed: PackedState) -> list[jax.Array]:
        """The arrays of a state, each on the devices of its stage; those of a stage are copies.

        Every process of several must call it.
        """
        program = self._program
        shared = (v for v in program.state if v not in program.kept)
        found = dict(zip(shared, packed.shared, strict=True))
        for stage, packing in enumerate(program.owned):
            if self._is_here[stage] and packing.values:
                arrays = self._unpacks[stage](self._part(packed.stages, stage))
                found.update(zip(packing.values, arrays, strict=True))
        return [
            found[v] if v in found else self._absent(v, sharding)
            for v, sharding in zip(program.state, self.shardings, strict=True)
        ]

    def _absent(self, value: Value, sharding: NamedSharding) -> jax.Array:
        """An array of which this process holds nothing."""
        shape = self._program.whole_shape(value)
        return jax.make_array_from_single_device_arrays(shape, sharding, [], dtype=value.dtype)

    def _part(self, flat: Flat, stage: int) -> Flat:
        """A stage's part of flat arrays; copies nothing."""
        mesh = self._meshes[stage]
        sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        devices = set(mesh.devices.flat)
        found: Flat = {}
        for name, array in flat.items():
            parts = [s.data for s in array.addressable_shards if s.device in devices]
            shape = (self._program.sizes[name] * mesh.size,)
            found[name] = jax.make_array_from_single_device_arrays(shape, sharding, parts)
        return found

    def spread(self, packed: PackedState) -> list[Any]:
        """The arrays of a state, each on every stage; within a program that jax compiles.

        What nothing reads is not sent.
        """
        shared, found = iter(packed.shared), []
        for value, stage in zip(self._program.state, self.stages, strict=True):
            found.append(next(shared) if stage is None else self._sent(packed, value, stage))
        return found

    def _sent(self, packed: PackedState, value: Value, stage: int) -> Any:
        """An array of a stage on all devices."""
        packing, axis = self._program.owned[stage], self._program.axis
        name, _ = packing.place[value]

        def read(flat: Any) -> Any:
            own = packing.part({name: flat}, value)
            number = own.astype(jnp.int32) if own.dtype == bool else own
            mine = jnp.where(lax.axis_index(axis) == stage, number, jnp.zeros_like(number))
            return shaped(value, lax.psum(mine, axis).astype(own.dtype))

        run = mapped(read, self.whole, (self._each[name],), spec(value))
        return run(packed.stages[name])


def spec(value: Value) -> PartitionSpec:
    """The layout of a value over the axes of the mesh; micro-batches are no axis of it."""
    layout = tuple(tuple(a for a in axes if a != MICROBATCH) for axes in value.layout or ())
    return spec_of(layout)


def mapped(fn: Callable[..., Any], mesh: Any, ins: Any, outs: Any) -> Callable[..., Any]:
    """A function of a device's parts as one of whole arrays."""
    return jax.shard_map(fn, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False)
