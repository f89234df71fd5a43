"""Plans a step once, for the devices it will run on, with the donation it will have.

What is printed, checked before a launch, run, and handed to the processes of a learner comes from
here: nobody else calls `partitioning.partition`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from ..interfaces import Update, UpdateOutput
from ..replay.items import Sample
from . import dispatch, runtime
from .held import HeldState, as_it_is, by_stage
from .placement import Partition

if TYPE_CHECKING:
    from ... import partitioning

Nest = Any
_MEMORY_ERROR = 1.15
"""Share of a step's memory that predictions stay below (docs/simulator.md)."""
STATE = "state"
"""Name of the argument that a step donates."""


@dataclasses.dataclass(frozen=True)
class PlannedStep:
    """A step and the shapes of its arguments, planned when it is first asked for.

    Attributes:
      step: made by `partitioning.partition`.
      shapes: of its arguments, `jax.ShapeDtypeStruct`.
    """

    step: partitioning.Partitioned
    shapes: tuple[Nest, ...]

    @functools.cached_property
    def plan(self) -> partitioning.Plan:
        """The plan; raises ValueError where a tactic cannot be applied."""
        return self.step.plan(*self.shapes)

    def on(self, mesh: partitioning.Mesh, tactics: Sequence[Any]) -> partitioning.Plan:
        """The plan on another mesh under other tactics; the step is traced once for all of them.

        Raises:
          ValueError: where a tactic cannot be applied.
        """
        return self.step.with_schedule(mesh, tactics).plan(*self.shapes)

    def compile(self) -> Any:
        """The step bound to the devices of its mesh; see `partitioning.Partitioned.compile`."""
        return self.step.compile(*self.shapes)


def plan_step(
    fn: Callable[..., Any],
    partition: Partition,
    shapes: tuple[Nest, ...],
    devices: runtime.Devices | None = None,
    weights: tuple[str, ...] = (),
) -> PlannedStep:
    """Plans a function over the mesh of a partition, without touching a device.

    Args:
      fn: positional pytrees in, a pytree out; its argument `state`, if it has one, is donated.
      partition: where it runs. With decisions nothing is searched.
      shapes: of its arguments.
      devices: those at hand, for which it is planned where the partition names none; None: those
        of this process.
      weights: names of arguments that are parameters and do not come out again.

    Raises:
      ValueError: if the mesh lacks an axis of a tactic, there is no such device, or the decisions
        are of another step.
    """
    from ... import partitioning  # Only who has a mesh pays for it.

    devices = devices or runtime.here(partition.mesh.devices())
    options: dict[str, Any] = {"decisions": partition.decisions}
    if partition.decisions is None:
        options = {
            "simulate": _simulator(partition, devices),
            "recompute": partition.recompute,
            **partitioning.laid_out(partition.placement),
        }
    step = partitioning.partition(
        fn,
        partition.mesh,
        partition.schedule,
        donate=(STATE,),
        weights=weights,
        # Between processes on CPU every message costs a wake-up of each; copies cost less.
        bundle=devices.processes > 1 and devices.platform == "cpu",
        **options,
    )
    return PlannedStep(step, shapes)


def plan_update(
    update: Update, partition: Partition, sample: Sample, devices: runtime.Devices | None = None
) -> PlannedStep:
    """Plans one gradient step.

    Args:
      update: written for one device and the global batch.
      partition: where it runs.
      sample: shapes of the global batch [B, ...], as the update sees it.
      devices: as of `plan_step`.

    Raises:
      ValueError: as of `plan_step`.
    """

    update = dispatch.strongly_typed(update)  # As the learner runs it.

    def step(state: Nest, sample: Sample) -> Any:
        return update.step(state, sample)

    state = jax.eval_shape(lambda: update.init(jax.random.key(0)))
    return plan_step(step, partition, (state, sample), devices)


def require_memory(
    planned: PlannedStep,
    update: Update,
    partition: Partition,
    sample: Sample,
    devices: runtime.Devices | None = None,
) -> None:
    """Refuses a gradient step for which a device has too little memory.

    A plan whose decisions were made before is taken as it is.

    Args:
      planned: the step.
      update, partition, sample, devices: that it was planned for.

    Raises:
      ValueError: if its predicted peak is beyond the memory by more than predictions err; with
        a schedule for the same mesh that fits, where one of `partitioning.choose.SCHEDULES` does.
    """
    from ...partitioning.choose import SCHEDULES
    from ...partitioning.tactics import parse_schedule

    if partition.decisions is not None or not _is_too_large(planned):
        return
    cost = planned.plan.steps[-1].simulation
    fitting = []
    for schedule in SCHEDULES:
        other = dataclasses.replace(partition, schedule=parse_schedule(schedule))
        with contextlib.suppress(ValueError):  # This mesh or this step cannot have it.
            tried = plan_update(update, other, sample, devices)
            if not _is_too_large(tried):
                found = tried.plan.steps[-1].simulation
                fitting.append((found.predicted_seconds.total, schedule, found))
    advice = "no known schedule of this mesh fits: take more devices, or --recompute auto"
    if fitting:
        _, schedule, found = min(fitting, key=lambda one: one[:2])
        advice = f"--schedule {schedule} needs {found.peak_memory_bytes / 2**30:.2f} GiB"
    raise ValueError(
        f"it needs {cost.peak_memory_bytes / 2**30:.2f} GiB of each device's "
        f"{cost.device.memory_bytes / 2**30:.2f} GiB ({cost.device.name}); {advice}"
    )


def _is_too_large(planned: PlannedStep) -> bool:
    cost = planned.plan.steps[-1].simulation
    return cost.peak_memory_bytes > _MEMORY_ERROR * cost.device.memory_bytes


class SpreadUpdate(NamedTuple):
    """An update whose step runs over the devices of a mesh, within a program that jax compiles."""

    update: Update
    """Its step takes the state as it is held"""
    step: Any
    """The step of the partitioner, bound to the devices (`partitioning.Partitioned.compile`)"""
    state: HeldState
    sample: Sample
    """Shardings of a batch"""
    output: UpdateOutput
    """Shardings of what a step gives"""


def spread_update(update: Update, partition: Partition, sample: Sample) -> SpreadUpdate:
    """Plans an update and binds it to devices; nothing is compiled yet.

    Args:
      update: written for one device and the global batch.
      partition: where it runs.
      sample: as of `plan_update`.

    Raises:
      ValueError: as of `plan_step` and `require_memory`, or if there are too few devices.
    """
    planned = plan_update(update, partition, sample)
    require_memory(planned, update, partition, sample)
    bound, (shapes, batch) = planned.compile(), planned.shapes
    leaves, structure = jax.tree.flatten(shapes)
    placed = [
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        for leaf, sharding in zip(leaves, bound.in_shardings[: len(leaves)], strict=True)
    ]
    nest = jax.tree.unflatten(structure, placed)
    if planned.plan.pipeline is None:
        held, step = as_it_is(nest), _step(bound)
    else:
        held, step = by_stage(nest, bound.packing), _pipelined_step(bound)
    _, output = jax.tree.unflatten(bound.out_tree, bound.out_shardings)
    return SpreadUpdate(
        dispatch.strongly_typed(update)._replace(step=step, steps=None),
        bound,
        held,
        jax.tree.unflatten(jax.tree.structure(batch), bound.in_shardings[len(leaves) :]),
        output,
    )


_Step = Callable[[Nest, Sample], tuple[Nest, UpdateOutput]]


def _step(bound: Any) -> _Step:
    def step(state: Nest, sample: Sample) -> tuple[Nest, UpdateOutput]:
        found = bound.jitted(*jax.tree.leaves((state, sample)))
        after: tuple[Nest, UpdateOutput] = jax.tree.unflatten(bound.out_tree, found)
        return after

    return step


def _pipelined_step(bound: Any) -> _Step:
    _, output = bound.out_tree.children()

    def step(packed: Nest, sample: Sample) -> tuple[Nest, UpdateOutput]:
        packed, found = bound.step(packed, jax.tree.leaves(sample))
        return packed, jax.tree.unflatten(output, found)

    return step


def _simulator(partition: Partition, devices: runtime.Devices) -> partitioning.Simulator:
    """Predicts for the device that a partition names, or for those at hand."""
    from ... import partitioning

    if partition.device is not None:
        return partitioning.Simulator(partition.device)
    inside = max(partition.mesh.size // devices.processes, 1)
    like = partitioning.nearest(devices, max(devices.per_process, inside))
    joined = partitioning.hosts_topology(like.name, inside, devices.processes)
    return partitioning.Simulator(like, joined)
