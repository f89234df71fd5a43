"""A pipelined step on devices: every array of the state is an array of its shape that lies on the
devices of its stage alone.

The state is packed before the program of all devices and unpacked behind it; both are copies within
a device. A loop of steps keeps it packed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax

from ...mesh import Mesh
from .packed import PackedState, StatePacking, mapped, spec
from .spmd import PipelineProgram


class PipelineRun:
    """A pipelined step bound to devices.

    Args:
      program: of one device.
      mesh: its mesh, with real devices.
      donated: positions of inputs that are given away.

    Attributes:
      packing: packs and unpacks the state.
      in_shardings: of the flat inputs; an input of one stage lies on the devices of that stage.
      out_shardings: of the flat outputs.
      step: `(packed state, other inputs) -> (packed state, other outputs)`, for programs that jax
        compiles.
    """

    def __init__(self, program: PipelineProgram, mesh: Mesh, donated: Collection[int] = ()):
        self.program = program
        self._donated = frozenset(donated)
        self.packing = StatePacking(program, mesh)
        step, after = program.step.program, program.after
        lie = dict(zip(program.state, self.packing.shardings, strict=True))
        self._others = [i for i, v in enumerate(step.inputs) if v not in lie]
        self._results = [i for i in range(len(step.outputs)) if i not in set(after.values())]
        shared = self.packing.sharding
        self.in_shardings = tuple(lie.get(v) or shared(v) for v in step.inputs)
        updated = {at: lie[v] for v, at in after.items()}
        self.out_shardings = tuple(updated.get(i) or shared(v) for i, v in enumerate(step.outputs))
        self.step = self._mapped()
        # What is packed is a copy; what all stages hold may be the caller's.
        self._jitted = jax.jit(
            lambda stages, shared, others: self.step(PackedState(stages, shared), others),
            donate_argnums=0,
        )

    def _mapped(self) -> Callable[[PackedState, list[Any]], tuple[PackedState, list[Any]]]:
        """The program under `shard_map`."""
        program, step = self.program, self.program.step.program
        shared = [v for v in program.state if v not in program.kept]

        def local(packed: PackedState, others: list[Any]) -> tuple[PackedState, list[Any]]:
            have = dict(zip(shared, packed.shared, strict=True))
            have.update(zip((step.inputs[i] for i in self._others), others, strict=True))
            given = [have[step.inputs[i]] for i in program.shared]
            flat, returned = program(packed.stages, given)
            found = dict(zip(program.returned, returned, strict=True))
            after = PackedState(flat, tuple(found[program.after[v]] for v in shared))
            return after, [found[i] for i in self._results]

        specs = self.packing.specs
        others = [spec(step.inputs[i]) for i in self._others]
        results = [spec(step.outputs[i]) for i in self._results]
        return mapped(local, self.packing.whole, (specs, others), (specs, results))

    def __call__(self, leaves: Sequence[Any]) -> list[Any]:
        """Runs the step on flat inputs; those that are not where they belong are brought there."""
        program, step = self.program, self.program.step.program
        placed = jax.device_put(list(leaves), list(self.in_shardings))
        arrays = dict(zip(step.inputs, placed, strict=True))
        packed = self.packing.pack([arrays[v] for v in program.state])
        kept = {id(leaf) for i, leaf in enumerate(leaves) if i not in self._donated}
        for i, (given, array) in enumerate(zip(leaves, placed, strict=True)):
            # Its copy is packed: the memory is free for the step.
            owned = i in self._donated and step.inputs[i] in program.kept
            if owned and given is array and id(given) not in kept:
                array.delete()
        packed, results = self._jitted(*packed, [placed[i] for i in self._others])
        outputs: list[Any] = [None] * len(step.outputs)
        for i, array in zip(self._results, results, strict=True):
            outputs[i] = array
        for value, array in zip(program.state, self.packing.unpack(packed), strict=True):
            outputs[program.after[value]] = array
        return outputs

    def lower(self) -> Any:
        """jax's lowered form of the program of all devices."""
        inputs = self.program.step.program.inputs
        others = [self.packing.shape(inputs[i]) for i in self._others]
        return self._jitted.lower(*self.packing.shapes, others)
