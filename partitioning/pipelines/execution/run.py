"""A pipelined step on devices: every array of the state is an array of its shape that lies on the
devices of its stage alone.

One program of all devices takes arrays of which every device has a part. Before it each stage packs
its state into one such part, and unpacks it behind; both are copies within a device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from ...ir.execute import spec_of
from ...ir.program import Value
from ...mesh import Mesh
from ..stages.microbatches import MICROBATCH
from .flat import Flat, FlatLayout
from .spmd import PipelineProgram


class PipelineRun:
    """A pipelined step bound to devices.

    Args:
      program: of one device.
      mesh: its mesh, with real devices.
      donated: positions of inputs that are given away.

    Attributes:
      in_shardings: of the flat inputs; an input of one stage lies on the devices of that stage.
      out_shardings: of the flat outputs.
    """

    def __init__(self, program: PipelineProgram, mesh: Mesh, donated: Collection[int] = ()):
        self.program = program
        self._donated = frozenset(donated)
        self._whole = mesh.jax_mesh()
        at = list(mesh.axes).index(program.axis)
        devices = self._whole.devices
        self._stages = [
            jax.sharding.Mesh(devices.take([i], at), self._whole.axis_names)
            for i in range(devices.shape[at])
        ]
        self._each = PartitionSpec(self._whole.axis_names)
        step = program.step.program
        self._place = {v: i for i, p in enumerate(program.owned) for v in p.values}
        after = {o: self._place[v] for v, o in program.kept.items()}
        self.in_shardings = tuple(self._sharding(v, self._place.get(v)) for v in step.inputs)
        self.out_shardings = tuple(
            self._sharding(v, after.get(i)) for i, v in enumerate(step.outputs)
        )
        self._packs = [self._packer(i) for i in range(len(self._stages))]
        self._unpacks = [self._unpacker(i) for i in range(len(self._stages))]
        self._jitted = jax.jit(self._mapped(), donate_argnums=0)

    def _sharding(self, value: Value, stage: int | None) -> NamedSharding:
        mesh = self._whole if stage is None else self._stages[stage]
        return NamedSharding(mesh, _spec(value))

    def _mapped(self) -> Callable[[Flat, list[Any]], tuple[Flat, list[Any]]]:
        """The program under `shard_map`."""
        step = self.program.step.program
        flats = dict.fromkeys(self.program.sizes, self._each)
        shared = [_spec(step.inputs[i]) for i in self.program.shared]
        returned = [_spec(step.outputs[i]) for i in self.program.returned]
        return _shard_map(self.program, self._whole, (flats, shared), (flats, returned))

    def _packer(self, stage: int) -> Callable[[list[Any]], Flat]:
        """A program that packs the inputs of a stage."""
        packing, sizes = self.program.owned[stage], self.program.sizes

        def pack(arrays: list[Any]) -> Flat:
            return packing.pack(dict(zip(packing.values, arrays, strict=True)), sizes)

        specs = [_spec(v) for v in packing.values]
        flats = dict.fromkeys(sizes, self._each)
        return jax.jit(_shard_map(pack, self._stages[stage], (specs,), flats))

    def _unpacker(self, stage: int) -> Callable[[Flat], list[Any]]:
        """A program that unpacks the outputs of a stage."""
        packing: FlatLayout = self.program.owned[stage]

        def unpack(flat: Flat) -> list[Any]:
            return list(packing.unpack(flat).values())

        specs = [_spec(v) for v in packing.values]
        flats = dict.fromkeys(self.program.sizes, self._each)
        return jax.jit(_shard_map(unpack, self._stages[stage], (flats,), specs))

    def __call__(self, leaves: Sequence[Any]) -> list[Any]:
        """Runs the step on flat inputs; those that are not where they belong are brought there."""
        step, program = self.program.step.program, self.program
        placed = jax.device_put(list(leaves), list(self.in_shardings))
        arrays = dict(zip(step.inputs, placed, strict=True))
        packed = [
            pack([arrays[v] for v in packing.values])
            for pack, packing in zip(self._packs, program.owned, strict=True)
        ]
        kept = {id(leaf) for i, leaf in enumerate(leaves) if i not in self._donated}
        for i, (given, array) in enumerate(zip(leaves, placed, strict=True)):
            # Its copy is packed: the memory is free for the step.
            owned = i in self._donated and step.inputs[i] in self._place
            if owned and given is array and id(given) not in kept:
                array.delete()
        flat, returned = self._jitted(self._joined(packed), [placed[i] for i in program.shared])
        outputs: list[Any] = [None] * len(step.outputs)
        for i, array in zip(program.returned, returned, strict=True):
            outputs[i] = array
        for stage, packing in enumerate(program.owned):
            if packing.values:
                found = self._unpacks[stage](self._part(flat, stage))
                for value, array in zip(packing.values, found, strict=True):
                    outputs[program.kept[value]] = array
        return outputs

    def lower(self) -> Any:
        """jax's lowered form of the program of all devices."""
        step, sharding = self.program.step.program, NamedSharding(self._whole, self._each)
        flat = {
            name: jax.ShapeDtypeStruct((size * self._whole.size,), name, sharding=sharding)
            for name, size in self.program.sizes.items()
        }
        shared = []
        for i in self.program.shared:
            shape = self.program.whole_shape(step.inputs[i])
            shared.append(
                jax.ShapeDtypeStruct(shape, step.inputs[i].dtype, sharding=self.in_shardings[i])
            )
        return self._jitted.lower(flat, shared)

    def _joined(self, packed: Sequence[Flat]) -> Flat:
        """Flat arrays of all devices from those of the stages; copies nothing."""
        sharding = NamedSharding(self._whole, self._each)
        found: Flat = {}
        for name, size in self.program.sizes.items():
            parts = [shard.data for flat in packed for shard in flat[name].addressable_shards]
            shape = (size * self._whole.size,)
            found[name] = jax.make_array_from_single_device_arrays(shape, sharding, parts)
        return found

    def _part(self, flat: Flat, stage: int) -> Flat:
        """A stage's part of flat arrays; copies nothing."""
        mesh = self._stages[stage]
        sharding, devices = NamedSharding(mesh, self._each), set(mesh.devices.flat)
        found: Flat = {}
        for name, array in flat.items():
            parts = [s.data for s in array.addressable_shards if s.device in devices]
            shape = (self.program.sizes[name] * mesh.size,)
            found[name] = jax.make_array_from_single_device_arrays(shape, sharding, parts)
        return found


def _spec(value: Value) -> PartitionSpec:
    """The layout of a value over the axes of the mesh; micro-batches are no axis of it."""
    layout = tuple(tuple(a for a in axes if a != MICROBATCH) for axes in value.layout or ())
    return spec_of(layout)


def _shard_map(fn: Callable[..., Any], mesh: Any, ins: Any, outs: Any) -> Callable[..., Any]:
    return jax.shard_map(fn, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False)
