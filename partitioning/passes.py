"""The passes that make a plan, in order, each over the one record of the plan.

A pass decides, by search where need be, and carries out its decisions. `decided` returns them as
plain data, and `restore` carries out that data in another process without a search. Steps that are
split further, such as into the stages of a pipeline, are further passes of the list.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax

from .decide.actions import Tactic, axes_of, label
from .decide.positions import Positions
from .decide.propagate import Conflict
from .decide.repropagate import Repropagation, apply_tactic
from .ir.verify import verify
from .options import PlanOptions
from .pipelines.cutting import StepCuts, cut, rewritten
from .pipelines.pipeline import Pipeline
from .placement.matrix import PlacementMatrix
from .placement.place import hierarchy, placed, replaced
from .record import PlanMove, PlanRecord, PlanStep
from .rematerialization.recompute import refitted
from .rewritten import Rewritten, Saved
from .rules import traits_of
from .tactics.manual import hints
from .tactics.search.automatic import SearchLog

_OF_64_BITS = {"float64", "complex128", "int64", "uint64"}


class Pass(Protocol):
    """One stage of planning."""

    @property
    def name(self) -> str: ...

    def decide(self, record: PlanRecord) -> None:
        """Decides and carries it out: appends steps to the record, if there is anything to do.

        Raises:
          ValueError: what cannot be.
        """

    def decided(self, record: PlanRecord) -> Any:
        """Returns what was decided as plain data, or None."""

    def restore(self, record: PlanRecord, decided: Any) -> None:
        """Carries out what `decided` told of a plan of the same program."""


class EnterTactics:
    """Enters the tactics of the schedule, one by one; each may search."""

    name = "tactics"

    def decide(self, record: PlanRecord) -> None:
        """Enters every tactic.

        Raises:
          ValueError: what a tactic cannot do, or a callback that several devices cannot do.
        """
        _check_callbacks(record)
        tactics = [tactic for tactic in record.schedule if not isinstance(tactic, Pipeline)]
        for index, tactic in enumerate(tactics):
            record.state.tactic = index
            record.steps += (_entered(record, tactic),)
        if not tactics:
            record.steps += (record.step("unpartitioned"),)
        *before, last = record.steps
        more = *_gathered(record), *_not_followed(record)
        record.steps = (*before, last.with_notes(more))

    def decided(self, record: PlanRecord) -> list[dict[str, Any]]:
        """Returns the steps of the tactics with their lines of the journal."""
        positions = Positions(record.graph)
        found, start = [], 0
        for step in record.steps:
            if step.made is None:
                found.append(_saved(step, positions, start))
                start = step.end
        return found

    def restore(self, record: PlanRecord, decided: list[dict[str, Any]]) -> None:
        """Enters the journal again, and the steps with it."""
        _check_callbacks(record)
        positions = Positions(record.graph)
        for index, saved in enumerate(decided):
            record.state.tactic = index
            record.state.enter(positions.decisions(saved["journal"], index))
            log = saved["search"]
            step = record.step(
                saved["name"], saved["axis"], axes=tuple(saved["axes"]),
                conflicts=tuple(map(positions.conflict_of, saved["conflicts"])),
                notes=tuple(saved["notes"]),
                repropagated=tuple(map(positions.repropagation_of, saved["repropagated"])),
                moves=tuple(PlanMove(*move) for move in saved["moves"]),
                log=None if log is None else SearchLog.from_json(log),
            )  # fmt: skip
            record.steps += (step,)


def _saved(step: PlanStep, positions: Positions, start: int) -> dict[str, Any]:
    """The step of a tactic as plain data; its lines of the journal begin at `start`."""
    return {
        "name": step.name,
        "axis": step.axis,
        "axes": list(step.axes),
        "journal": positions.journal(step.plan.state.journal[start : step.end]),
        "conflicts": [positions.conflict(c) for c in step.conflicts],
        "repropagated": [positions.repropagation(r) for r in step.repropagated],
        "notes": list(step.notes),
        "moves": [[move.text, move.start, move.end] for move in step.moves],
        "search": None if step.log is None else step.log.to_json(),
    }


def _entered(record: PlanRecord, tactic: Tactic) -> PlanStep:
    """Enters one tactic."""
    context = record.context([each.name for each in record.schedule])
    journal = record.state.journal
    search = getattr(tactic, "search", None)
    found = search(context) if callable(search) else None
    conflicts: list[Conflict] = []
    repropagated: list[Repropagation] = []
    moves: list[PlanMove] = []
    if found is None:
        conflicts, repropagated = apply_tactic(
            context, tactic.actions(context), tactic.axis, record.work
        )
    else:
        for move in found.entered:
            start = len(journal)
            record.state.enter(move.decisions)
            conflicts += move.conflicts
            repropagated += move.repropagated
            context.notes += move.notes
            moves.append(PlanMove(found.log.saving(len(moves)), start, len(journal)))
    if len(moves) > 1:  # What one move left open another may have settled.
        factors = record.state.factors
        conflicts = [c for c in conflicts if c.axis not in factors.get(c.node, ())]
    step = record.step(
        tactic.name, tactic.axis, conflicts=tuple(conflicts), notes=tuple(context.notes),
        repropagated=tuple(repropagated), axes=axes_of(tactic), moves=tuple(moves),
        log=None if found is None else found.log,
    )  # fmt: skip
    record.take_candidate(step)
    return step


def _check_callbacks(record: PlanRecord) -> None:
    """Checks that jax can call the host on several devices as the step does.

    Raises:
      ValueError: a callback that jax does not order there, or of values that its threads round.
    """
    calls = [op for op, _ in record.graph.unruled if traits_of(op.name).host]
    for op in calls if record.mesh.size > 1 else ():
        where = f"{op.name} at {op.source or 'an unknown line'}"
        if any(type(e).__name__ == "OrderedDebugEffect" for e in op.effects):
            raise ValueError(
                f"{where} is ordered, which jax does not do on several devices; use ordered=False, "
                "or jax.experimental.io_callback(..., ordered=True)"
            )
        wide = {str(value.dtype) for value in (*op.inputs, *op.outputs)} & _OF_64_BITS
        if wide and not _reaches_threads():
            raise ValueError(
                f"{where} is of {min(wide)} within enable_x64, which does not reach the threads "
                "that call the host on several devices; turn it on for the whole process, by "
                'jax.config.update("jax_enable_x64", True)'
            )


def _reaches_threads() -> bool:
    """True if 64 bits are enabled for threads that are begun elsewhere, too."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return bool(thread.submit(lambda: jax.config.jax_enable_x64).result())


def _gathered(record: PlanRecord) -> list[str]:
    """A line for each op without a rule that gets operands which are tiled, and for each that
    calls the host.
    """
    found: dict[str, None] = {}
    for op, loops in record.graph.unruled:
        tiled = [v for v in op.inputs if any(record.state.layout(v))]
        host = traits_of(op.name).host and record.mesh.size > 1
        if tiled or host:
            why = "is called on the first device alone" if host else "has no rule"
            names = ", ".join(label(v) for v in tiled)
            gathered = f": {names} gathered" if tiled else ""
            inside = ", once per turn of the loop it is in" if loops else ""
            found[f"{op.name} at {op.source or 'an unknown line'} {why}{gathered}{inside}"] = None
    return list(found)


def _not_followed(record: PlanRecord) -> list[str]:
    """Lines of the hints in the step's code that the plan does not follow: one of those that the
    tactic would, and one of those over an axis that the mesh lacks, if there are any."""
    found: dict[str, list[str]] = {}
    for op in hints(record.graph.program):
        wanted, layout = op.params["layout"], record.state.layout(op.outputs[0])
        lacking = sorted({axis for axes in wanted for axis in axes} - {*record.mesh.axes})
        if all({*axes} <= {*got} for axes, got in zip(wanted, layout, strict=True)):
            continue
        why = f"mesh {record.mesh} has no axis {', '.join(map(repr, lacking))}"
        hint = f"{op.params['name']} at {op.source or 'an unknown line'}"
        found.setdefault(why if lacking else "tactic hints:AXIS does", []).append(hint)
    return [
        f"not followed ({why}): with_sharding_constraint {first}"
        + (f", and {len(others)} more" if others else "")
        for why, (first, *others) in found.items()
    ]


@dataclasses.dataclass(frozen=True)
class Rewrite:
    """A pass that writes the local program of the last step anew, where it is asked to.

    Attributes:
      name: of the pass and of its step.
      asked: True if the options of a record ask for it.
      write: decides and writes the program; or writes the one that `Rewritten.to_json` told of.
      after: what else becomes of the record.
    """

    name: str
    asked: Callable[[PlanOptions], bool]
    write: Callable[[PlanRecord, Saved | None], Rewritten]
    after: Callable[[PlanRecord, Rewritten], None] = lambda record, made: None

    def decide(self, record: PlanRecord) -> None:
        """Appends a step with the program, where it is asked for."""
        if self.asked(record.options):
            self._append(record, self.write(record, None))

    def decided(self, record: PlanRecord) -> Saved | None:
        """Returns the note, the figures and the recipe of the step."""
        made = (step.made for step in record.steps if step.name == self.name)
        return next((one.to_json() for one in made if one is not None), None)

    def restore(self, record: PlanRecord, decided: Saved | None) -> None:
        """Appends the step again."""
        if decided is not None:
            self._append(record, self.write(record, decided))

    def _append(self, record: PlanRecord, made: Rewritten) -> None:
        verify(made.program, made.mesh)
        self.after(record, made)
        record.steps += (record.step(self.name, notes=(made.note,), made=made),)


def _recompute(record: PlanRecord, saved: Saved | None) -> Rewritten:
    judge, recompute = record.judge, record.options.recompute
    assert recompute is not None
    if saved is not None:
        return refitted(record.program, judge.device, judge.predict, judge.mesh, saved)
    return recompute.fit(record.program, judge.device, record.donated, judge.predict, judge.mesh)


def _place(record: PlanRecord, saved: Saved | None) -> Rewritten:
    given = record.program, record.mesh.axes, record.judge.simulator, record.donated
    if saved is not None:
        return replaced(*given, saved)
    return placed(*given, record.options.reductions == "synthesised")


def _lay_axes(record: PlanRecord, made: Rewritten) -> None:
    record.matrix = PlacementMatrix.from_json(made.figures)


def _reduce(record: PlanRecord, saved: Saved | None) -> Rewritten:
    lies = hierarchy(record.judge.simulator, record.mesh.axes, record.matrix)
    return lies.reduced(record.program, record.mesh.axes, record.donated, saved)


def _cut_axes(record: PlanRecord, made: Rewritten) -> None:
    record.parts = made.recipe.get("parts", {})


class CutPipeline:
    """Cuts the step into the stages of a pipeline, where the schedule asks for it."""

    name = "pipeline"

    def decide(self, record: PlanRecord) -> None:
        """Cuts the step.

        Raises:
          ValueError: it cannot be cut so, or the plan has what goes with no pipeline.
        """
        self._cut(record, None)

    def _cut(self, record: PlanRecord, saved: Saved | None) -> None:
        found = [tactic for tactic in record.schedule if isinstance(tactic, Pipeline)]
        if not found:
            return
        if len(found) > 1 or record.schedule[-1] is not found[0]:
            names = ", ".join(tactic.name for tactic in record.schedule)
            raise ValueError(
                f"the schedule is {names}; one pipeline comes last, behind tactics of other axes"
            )
        (pipeline,), options = found, record.options
        for option, asked in (
            ("recompute", options.recompute is not None),
            ("placement='auto'", options.placement is not None),
            ("reductions='synthesised'", options.reductions != "flat"),
        ):
            if asked:
                raise ValueError(f"{option} does not go with a pipeline; leave one of them out")
        for op in record.graph.program.walk():
            if traits_of(op.name).host:
                where = op.source or "an unknown line"
                raise ValueError(
                    f"{op.name} at {where} calls the host, which no stage of a pipeline does; "
                    "return what it needs from the step"
                )
        simulator, donated = record.judge.simulator, record.donated
        if record.cuts is None:
            record.cuts = StepCuts(pipeline, record.graph, record.state, simulator)
        else:
            record.cuts = record.cuts.of(pipeline)
        program, tried = cut(record.cuts, donated, saved)
        made = rewritten(program, simulator, donated, tried, saved)
        record.pipeline = program
        step = record.step(self.name, pipeline.axis, notes=(made.note,), made=made)
        record.steps += (step,)

    def decided(self, record: PlanRecord) -> Saved | None:
        """Returns the note, the figures, and where the step was cut."""
        made = (step.made for step in record.steps if step.name == self.name)
        return next((one.to_json() for one in made if one is not None), None)

    def restore(self, record: PlanRecord, decided: Saved | None) -> None:
        """Cuts the step again."""
        if decided is not None:
            self._cut(record, decided)


PASSES: tuple[Pass, ...] = (
    EnterTactics(),
    CutPipeline(),
    Rewrite("recompute", lambda options: options.recompute is not None, _recompute),
    Rewrite("placement", lambda options: options.placement == "auto", _place, _lay_axes),
    Rewrite("reductions", lambda options: options.reductions == "synthesised", _reduce, _cut_axes),
)
"""Every pass, in order."""
