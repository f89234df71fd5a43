"""A mesh and a schedule for so many devices: known schedules on every shape, then a search, and
pipelines of a few depths.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .decide.actions import Tactic, axes_of
from .explain import table
from .ir.garbage import no_garbage_collection
from .mesh import Mesh
from .pipelines.pipeline import Pipeline
from .plan import Plan
from .simulator.errors import error_of
from .simulator.simulate import Simulation, amount
from .tactics import parse_schedule
from .tactics.search.automatic import Automatic, Budget

#: The schedules tried on every mesh; those over "model" where it has that axis.
SCHEDULES = (
    "batch:data",
    "batch:data,zero2:data",
    "batch:data,zero3:data",
    "batch:data,embedding:model",
    "batch:data,expert:model",
    "batch:data,megatron:model",
    "batch:data,megatron:model,zero2:data",
    "batch:data,megatron:model,zero3:data",
)
#: What is tried of a pipeline: of every depth the first, of the best depth the others too.
PIPELINES = ("pipeline:stage", "pipeline:stage+zero-bubble", "pipeline:stage+interleaved")
#: Micro-batches for each stage that are tried on the best depth besides.
_FOR_EACH_STAGE = (2, 8)
#: The deepest pipeline that is tried.
_DEEPEST = 8
#: The widest axis "model" that is tried: beyond, a layer's exchanges leave its host.
_WIDEST = 16
#: Times that differ by less than this share are alike.
_ALIKE = 0.01
#: On how many of the best meshes a search follows, and how long it may be.
_SEARCHED, _ESTIMATES = 2, 100

#: Plans a schedule on a mesh.
Planner = Callable[[Mesh, Sequence[Tactic]], Plan]


@dataclasses.dataclass(frozen=True)
class TriedPlan:
    """One mesh under one schedule.

    Attributes:
      mesh, schedule: as a command line takes them.
      plan: what was made of them; None where they do not go together.
      why: why not.
    """

    mesh: str
    schedule: str
    plan: Plan | None
    why: str = ""

    @property
    def is_pipeline(self) -> bool:
        """True if it has stages."""
        return "pipeline:" in self.schedule

    @property
    def simulation(self) -> Simulation:
        """The cost of its plan."""
        assert self.plan is not None
        return self.plan.steps[-1].simulation

    def to_json(self) -> dict[str, Any]:
        """The figures by name."""
        cost = self.simulation
        return {
            "mesh": self.mesh,
            "schedule": self.schedule,
            "predicted_seconds": cost.predicted_seconds.total,
            "peak_memory_bytes": cost.peak_memory_bytes,
            "fits": cost.fits,
        }


@dataclasses.dataclass(frozen=True)
class PlanChoice:
    """The choice, and the plans that were not chosen.

    Attributes:
      best: what costs least time of what fits.
      others: all others, the better ones first.
      impossible: what could not be planned.
    """

    best: TriedPlan
    others: tuple[TriedPlan, ...]
    impossible: tuple[TriedPlan, ...]

    def of_pipelines(self) -> str:
        """One line: if a pipeline is quickest, and by how much; "" if none was tried."""
        able = [self.best, *self.others]
        staged = [tried for tried in able if tried.is_pipeline]
        if not staged:
            refused = [tried for tried in self.impossible if tried.is_pipeline]
            return f"no pipeline can be: {refused[0].why}" if refused else ""
        other = next((t for t in able if t.is_pipeline != self.best.is_pipeline), None)
        if other is None:
            return "a pipeline is all that can be"
        ratio = (
            other.simulation.predicted_seconds.total / self.best.simulation.predicted_seconds.total
        )
        where = f"--mesh {other.mesh} --schedule {other.schedule}"
        large = "" if other.simulation.fits else ", and does not fit"
        times = f"takes {ratio:.2f} times as long{large}"
        if self.best.is_pipeline:
            return f"a pipeline is best: without one, {where} {times}"
        return f"no pipeline is quickest: the best one, {where}, {times}"

    @property
    def plan(self) -> Plan:
        """The plan of what was chosen."""
        assert self.best.plan is not None
        return self.best.plan

    def __str__(self) -> str:
        count = 1 + len(self.others)
        lines = [
            f"chosen of {count}: --mesh {self.best.mesh} --schedule {self.best.schedule}",
            "the runners-up would cost:",
        ]
        whole = self.best.simulation.predicted_seconds.total
        rows = []
        for tried in (self.best, *_distinct(self.best, self.others)[:7]):
            cost = tried.simulation
            seconds = cost.predicted_seconds.total
            alike = error_of(cost.device).alike(seconds, whole) and tried is not self.best
            rows.append(
                {
                    "mesh": tried.mesh,
                    "schedule": tried.schedule,
                    "seconds": cost.shown_seconds(),
                    "times": "~ " * alike + f"{seconds / whole:.2f}",
                    "peak": amount(cost.peak_memory_bytes, "B", 1024)
                    + ("" if cost.fits else " (too large)"),
                }
            )
        lines.append(table(rows, left=("mesh", "schedule")))
        lines += filter(None, [self.of_pipelines()])
        if any(row["times"].startswith("~") for row in rows):
            lines.append("~: as long as what is chosen, within the error of predictions")
        if self.impossible:
            first = self.impossible[0]
            lines.append(
                f"{len(self.impossible)} more cannot be, e.g. --mesh {first.mesh} --schedule "
                f"{first.schedule}: {first.why}"
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """All that was tried, by name."""
        return {
            "chosen": self.best.to_json(),
            "others": [tried.to_json() for tried in self.others],
            "pipelines": self.of_pipelines(),
            "impossible": [
                {"mesh": tried.mesh, "schedule": tried.schedule, "why": tried.why}
                for tried in self.impossible
            ],
        }


def _distinct(best: TriedPlan, others: Sequence[TriedPlan]) -> list[TriedPlan]:
    """The others, of those that cost the very same the first."""
    found: list[TriedPlan] = []
    known = {(best.simulation.predicted_seconds.total, best.simulation.peak_memory_bytes)}
    for tried in others:
        cost = tried.simulation.predicted_seconds.total, tried.simulation.peak_memory_bytes
        if cost not in known:
            known.add(cost)
            found.append(tried)
    return found


def meshes(devices: int) -> Iterator[Mesh]:
    """The shapes that so many devices may have: all of them along the batch first.

    Raises:
      ValueError: where there are none.
    """
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise ValueError(f"{devices!r} devices are none to choose a mesh for; give at least 1")
    yield Mesh({"data": devices})
    for model in range(2, min(devices, _WIDEST) + 1):
        if devices % model == 0:
            yield Mesh({"data": devices // model, "model": model})


@no_garbage_collection()
def choose(
    planned: Planner,
    devices: int,
    memory: float = 1.0,
    schedules: Sequence[str] = SCHEDULES,
    searched: int = _SEARCHED,
    stages: bool = True,
) -> PlanChoice:
    """Chooses how so many devices share a step.

    Args:
      planned: plans the step, for a device.
      devices: how many.
      memory: the share of a device's memory within which a plan fits.
      schedules: tried on every mesh; those over "model" where it has that axis.
      searched: on how many of the best meshes a search follows.
      stages: False if the step is not to be a pipeline.

    Raises:
      ValueError: no devices, or nothing that can be planned on any mesh of them.
    """
    found: list[TriedPlan] = []
    shapes = list(meshes(devices))
    for mesh in shapes:
        for schedule in schedules:
            if ("model" in mesh.axes) == ("model" in schedule):
                found.append(_tried(planned, mesh, schedule, parse_schedule(schedule)))

    def rank(tried: TriedPlan) -> tuple[bool, float, float, int]:
        cost = tried.simulation
        nbytes = float(cost.peak_memory_bytes)
        large = nbytes > memory * cost.device.memory_bytes
        # Of what takes about as long, what needs least memory; of that what is said shortest.
        about = round(math.log(cost.predicted_seconds.total) / _ALIKE)
        return large, nbytes if large else about, nbytes, len(tried.schedule)

    able = sorted((t for t in found if t.plan is not None), key=rank)
    for name in list(dict.fromkeys(tried.mesh for tried in able))[:searched]:
        mesh = next(shape for shape in shapes if str(shape) == name)
        axes = tuple(mesh.axes)[::-1]
        search = Automatic(axes, budget=Budget(estimates=_ESTIMATES, judged=3))
        found.append(_tried(planned, mesh, f"auto:{search.axis}", [search]))
    if stages:
        found += _with_stages(planned, devices, rank)
    able = sorted((t for t in found if t.plan is not None), key=rank)
    if not able:
        raise ValueError(
            f"no known schedule splits this step over {devices} devices: {found[0].why}"
        )
    impossible = tuple(t for t in found if t.plan is None)
    return PlanChoice(able[0], tuple(able[1:]), impossible)


def _with_stages(
    planned: Planner, devices: int, rank: Callable[[TriedPlan], Any]
) -> list[TriedPlan]:
    """Pipelines over so many devices. Stages lie farthest apart, as they exchange least."""

    def tried(
        depth: int, table: str, before: str = "batch:data", planned: Planner = planned
    ) -> TriedPlan:
        rest = devices // depth
        axes = {"stage": depth, "data": rest} if rest > 1 else {"stage": depth}
        schedule = f"{before},{table}" if rest > 1 else table
        return _tried(planned, Mesh(axes), schedule, parse_schedule(schedule))

    deepest = min(devices, _DEEPEST)
    depths = [depth for depth in range(2, deepest + 1) if devices % depth == 0]
    found = {depth: tried(depth, PIPELINES[0]) for depth in depths}
    able = [depth for depth in depths if found[depth].plan is not None]
    if not able:
        return [*found.values()]
    best = min(able, key=lambda depth: rank(found[depth]))
    plan = found[best].plan
    assert plan is not None
    assert plan.pipeline is not None

    def beside(mesh: Mesh, tactics: Sequence[Tactic]) -> Plan:
        (pipeline,) = (tactic for tactic in tactics if isinstance(tactic, Pipeline))
        return plan.with_pipeline(pipeline)

    others = [tried(best, table, planned=beside) for table in PIPELINES[1:]]
    for count in (each * best for each in _FOR_EACH_STAGE):
        name = f"{PIPELINES[0]}+1f1b+{count}"
        if count == plan.pipeline.table.microbatches:  # That of the first, which named no number.
            schedule = found[best].schedule.replace(PIPELINES[0], name)
            others.append(dataclasses.replace(found[best], schedule=schedule))
        else:
            others.append(tried(best, name, planned=beside))
    if best < devices:
        others.append(tried(best, PIPELINES[0], "batch:data,zero3:data"))
    return [*found.values(), *others]


def _tried(planned: Planner, mesh: Mesh, schedule: str, tactics: Sequence[Tactic]) -> TriedPlan:
    try:
        plan = planned(mesh, tactics)
        if idle := _idle(plan, tactics):
            # Before it is lowered and simulated, which is most of the work.
            why = f"tactic {idle.name!r} finds nothing to split over {idle.axis}"
            return TriedPlan(str(mesh), schedule, None, why)
        plan.steps[-1].simulation  # noqa: B018  (what fails, fails here)
    except ValueError as error:
        return TriedPlan(str(mesh), schedule, None, str(error))
    return TriedPlan(str(mesh), schedule, plan)


def _idle(plan: Plan, tactics: Sequence[Tactic]) -> Tactic | None:
    """The first known tactic that decided nothing, where its axes are wider than one device."""
    before = 0
    for step, tactic in zip(plan.steps, tactics, strict=False):
        wide = any(plan.mesh.axes[axis] > 1 for axis in axes_of(tactic))
        if step.end == before and wide and not isinstance(tactic, Automatic | Pipeline):
            return tactic
        before = step.end
    return None
