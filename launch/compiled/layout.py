"""Lays out the arrays of a compiled loop: on one device, or over the devices of a mesh.

Several runs are spread whole, as many on each device, and need no communication. One run is spread
by its environments, with their rows in the replay, and by the partitioner's plan of its gradient
step; what lies where in between is left to XLA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from ...agents.programs import runtime
from ...agents.programs.planning import SpreadUpdate
from ...agents.programs.whole_loop import LoopState

Nest = Any
_DEVICES = "devices"


class Layout:
    """One device, which holds everything.

    Attributes:
      device: of the process, where a policy is judged and what one run has is read.
      sharding: of arrays of all runs, [S, ...], or of what one run begins with.
      note: a line that says what is not spread although there is a mesh; empty: there is none.
    """

    note = ""

    def __init__(self, device: jax.Device):
        """Takes the device."""
        self.device = device
        self.sharding: Sharding = SingleDeviceSharding(device)

    def over_devices(self, fn: Callable[..., Nest], apart: Sequence[bool]) -> Callable[..., Nest]:
        """Returns a function of all runs, made from one of the runs of a device.

        Args:
          fn: takes and gives nests [S, ...].
          apart: of each argument: whether each run has its own.
        """
        del apart
        return fn

    def shardings(self, shapes: LoopState) -> LoopState | Sharding:
        """Returns where a state lies, for which XLA is asked: one for all leaves, or of each."""
        del shapes
        return self.sharding

    def part(self, nest: Nest, index: int) -> tuple[Nest, int]:
        """Returns the arrays of the device that holds a run, and which of its runs it is."""
        return nest, index

    def place(self, index: jax.Array, size: int) -> jax.Array:
        """Returns where, among `size` runs of this device, a run is; elsewhere it is `size`."""
        del size
        return index

    def together(self, nests: Sequence[Nest]) -> Nest:
        """Returns nests of one run each as one of all, [S, ...], that lies as they do."""
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *nests)

    def call(self, program: Callable[..., Nest], *arguments: Nest) -> Nest:
        """Returns what a compiled program computes."""
        return program(*arguments)

    def replay_bytes(self, num_bytes: int) -> int:
        """Returns bytes that replays of all runs take in one memory, from those without a mesh."""
        return num_bytes


class RunsOverDevices(Layout):
    """S runs, as many on each device, one after another."""

    def __init__(self, devices: Sequence[jax.Device], num_runs: int):
        """Takes the devices, whose number divides S."""
        super().__init__(devices[0])
        self._devices, self._each = devices, num_runs // len(devices)
        self._mesh = jax.sharding.Mesh(np.array(devices, object), (_DEVICES,))
        self._spec = PartitionSpec(_DEVICES)
        self.sharding = NamedSharding(self._mesh, self._spec)

    def over_devices(self, fn: Callable[..., Nest], apart: Sequence[bool]) -> Callable[..., Nest]:
        specs = tuple(self._spec if own else PartitionSpec() for own in apart)
        return jax.shard_map(
            fn, mesh=self._mesh, in_specs=specs, out_specs=self._spec, check_vma=False
        )

    def part(self, nest: Nest, index: int) -> tuple[Nest, int]:
        device = self._devices[index // self._each]

        def held(leaf: jax.Array) -> jax.Array:
            (found,) = (one.data for one in leaf.addressable_shards if one.device == device)
            return found

        return jax.tree.map(held, nest), index % self._each

    def place(self, index: jax.Array, size: int) -> jax.Array:
        place = index - size * jax.lax.axis_index(_DEVICES)
        return jnp.where((place >= 0) & (place < size), place, size)

    def together(self, nests: Sequence[Nest]) -> Nest:
        here = jax.device_put(list(nests), self.device)
        return jax.device_put(super().together(here), self.sharding)

    def replay_bytes(self, num_bytes: int) -> int:
        return num_bytes if self.device.platform == "cpu" else num_bytes // len(self._devices)


class LoopOverMesh(Layout):
    """One run, of N environments, whose learner's step is planned for a mesh.

    Attributes:
      update: that runs over the mesh.
    """

    def __init__(self, spread: SpreadUpdate, num_envs: int):
        """Takes the update as it is planned, and N."""
        self._mesh: jax.sharding.Mesh = spread.step.jax_mesh
        super().__init__(self._mesh.devices.flat[0])
        self.sharding = whole = NamedSharding(self._mesh, PartitionSpec())
        self._learner = jax.tree.map(lambda shape: shape.sharding, spread.state.nest)

        def variables(state: Nest) -> dict[str, Nest]:
            # Whoever acts needs them whole, and many times between two steps of the learner.
            found: dict[str, Nest] = spread.update.variables(state)
            return jax.lax.with_sharding_constraint(found, whole)

        self.update = spread.update._replace(variables=variables)
        axes = _first_axes(spread.sample)
        parts = math.prod(self._mesh.shape[axis] for axis in axes)
        if num_envs % parts:
            more = math.ceil(num_envs / parts) * parts
            self.note = (
                f"{num_envs} environments cannot be divided by {parts} devices: each has all of "
                f"them and the whole replay (--config.num_envs {more} would be spread)"
            )
        elif parts == 1 < self._mesh.size:
            self.note = (
                "the schedule divides no batch: each device has all environments and the whole "
                "replay (begin it with batch:AXIS to spread them)"
            )
        if self.note:
            axes, parts = (), 1
        self._axes, self._parts = axes, parts

    def shardings(self, shapes: LoopState) -> LoopState:
        acting = shapes.acting
        streams, whole = PartitionSpec(self._axes or None), PartitionSpec()
        rows = PartitionSpec(None, self._axes or None)

        def every(nest: Nest, spec: PartitionSpec) -> Nest:
            return jax.tree.map(lambda _: NamedSharding(self._mesh, spec), nest)

        replay = every(acting.replay, whole)
        replay = replay._replace(
            rows=replay.rows._replace(
                columns=every(acting.replay.rows.columns, rows),
                ages=every(acting.replay.rows.ages, rows),
            )
        )
        # What is no array of a row for each stream is a count of them all.
        spread = {
            name: jax.tree.map(
                lambda leaf: NamedSharding(self._mesh, streams if leaf.ndim else whole),
                getattr(acting, name),
            )
            for name in ("streams", "timestep", "policy", "returns", "lengths")
        }
        learning = every(shapes.learning, whole)._replace(state=self._learner)
        return LoopState(every(acting, whole)._replace(replay=replay, **spread), learning)

    def call(self, program: Callable[..., Nest], *arguments: Nest) -> Nest:
        with runtime.COLLECTIVES:
            found = program(*arguments)
            if self.device.platform == "cpu":
                # Collectives of two programs must not meet, and on CPU nothing keeps them apart.
                jax.block_until_ready(found)
            return found

    def replay_bytes(self, num_bytes: int) -> int:
        copies = self._mesh.size if self.device.platform == "cpu" else 1
        return num_bytes // self._parts * copies


def _first_axes(shardings: Nest) -> tuple[str, ...]:
    """Returns the axes of a mesh that divide a batch; () where none does."""
    for sharding in jax.tree.leaves(shardings):
        if sharding.spec and (axes := sharding.spec[0]):
            return (axes,) if isinstance(axes, str) else tuple(axes)
    return ()
