"""The program of one micro-batch: the batch is tiled over an axis in time instead of a mesh axis.

A step over M micro-batches is a step that is batch-parallel over M devices, run on them in turn.
Propagation therefore tells the values that vary from micro-batch to micro-batch, and lowering
writes a reduction over the axis where gradients and losses are summed. These reductions become
`accumulate`, and gathers over the axis `collect`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ...decide.actions import Action, Context
from ...decide.graph import Graph
from ...decide.repropagate import apply_tactic
from ...decide.sharding import Decisions
from ...ir.program import COLLECTIVES, LOCAL, Op, Program, Value, is_over
from ...lower.cleanup import clean_up
from ...lower.cleanup.loops import reduce_after_checkpoint, reduce_after_loop
from ...lower.cleanup.reductions import reduce_late, sum_before_reducing
from ...lower.lower import lower
from ...rules import traits_of
from ...tactics.batch import BatchParallel
from .conditions import conditions_selected
from .loops import LoopsOfSteps

#: The axis of micro-batches. It is no identifier, so that no axis of a mesh has its name.
MICROBATCH = "micro-batch"


def microbatched(
    graph: Graph, state: Decisions, microbatches: int, inputs: Sequence[str] = (), dim: int = 0
) -> Program:
    """Returns the program of one micro-batch of one device.

    Args:
      graph: the traced step.
      state: the decisions over the axes of the mesh.
      microbatches: into how many parts each device's part of the batch is split.
      inputs: names of the arguments that are split; by default every argument that is not state.
      dim: the batch dimension of those.

    Raises:
      ValueError: no argument can be split, or its rows do not divide.
    """
    rows = rows_of_device(graph, state, inputs, dim)
    split = state.replay(mesh={**state.mesh, MICROBATCH: microbatches})
    split.tactic = 1 + max((d.tactic for d in split.journal), default=-1)
    context, actions = _split(graph, split, inputs, dim)
    if rows % microbatches:
        value = actions[0].value
        raise ValueError(
            f"the pipeline splits {value.path} {[*value.shape]} along dimension {dim}, where each "
            f"device has {rows} rows, which do not divide into {microbatches} micro-batches; "
            "choose a number that divides them"
        )
    apply_tactic(context, actions, MICROBATCH, graph.work)
    program = lower(graph, split)
    conditions_selected(program, crosses_microbatches)
    _reduce_late(program)
    if steps := [*_loops_of_steps(program)]:
        # What is summed in a turn of theirs is not left for later.
        program = lower(graph, split)
        conditions_selected(program, crosses_microbatches)
        _reduce_late(program, steps)
    in_time = functools.partial(_in_time, microbatches=microbatches)
    whole = functools.partial(without_microbatches, microbatches=microbatches)
    in_time(program)
    LoopsOfSteps(MICROBATCH, crosses_microbatches, whole, in_time).rewrite(program)
    if any(size > 1 for size in state.mesh.values()):
        clean_up(program, split.mesh)
    return program


def rows_of_device(graph: Graph, state: Decisions, inputs: Sequence[str] = (), dim: int = 0) -> int:
    """The rows of the batch that each device has; the other arguments are those of `microbatched`.

    Raises:
      ValueError: no argument can be split.
    """
    _, actions = _split(graph, state, inputs, dim)
    value = actions[0].value
    rows = value.shape[dim]
    for axis, tiled in state.tiles.get(value, {}).items():
        rows //= state.mesh[axis] if tiled == dim else 1
    return rows


def _split(
    graph: Graph, state: Decisions, inputs: Sequence[str], dim: int
) -> tuple[Context, list[Action]]:
    """The actions that split the batch, and the context that they are entered in."""
    tactic = BatchParallel(MICROBATCH, dim, tuple(inputs), "pipeline")
    # Messages name tactics by index; the last one is the split.
    names = ("",) * (1 + max((d.tactic for d in state.journal), default=-1))
    context = Context(graph, state, (*names, tactic.name))
    return context, tactic.actions(context)


def _loops_of_steps(program: Program, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """The numbers, from the outermost loop to the innermost, of loops that exchange between
    micro-batches in each turn.
    """
    for number, op in enumerate(op for op in program.ops if op.name == "scan"):
        if any(map(crosses_microbatches, op.regions[0].walk())):
            yield (*path, number)
            yield from _loops_of_steps(op.regions[0], (*path, number))


def _reduce_late(
    program: Program, steps: Sequence[tuple[int, ...]] = (), path: tuple[int, ...] = ()
) -> None:
    """Moves reductions over micro-batches out of loops and checkpoints, where they may be.

    Args:
      program: changed in place.
      steps: what `_loops_of_steps` tells; nothing leaves these.
      path: of the program itself.
    """
    scans = [op for op in program.ops if op.name == "scan"]
    apart = {op: (*path, i) for i, op in enumerate(scans) if (*path, i) in steps}
    for op in program.ops:
        for region in op.regions:
            if op in apart:
                _reduce_late(region, steps, apart[op])
                continue
            _reduce_apart(region)
            _sum_late(region)
            _reduce_late(region)
    for op in apart:
        op.name = "loop of steps"  # For a while it is no loop to passes over loops.
    reduce_after_checkpoint(program, {})
    reduce_after_loop(program, {})
    _reduce_after_stacking(program)
    for op in program.ops:
        if op.name == "loop of steps":
            op.name = "scan"


def _reduce_apart(region: Program) -> None:
    """Reduces over axes of the mesh first, and over micro-batches on its own."""
    ops: list[Op] = []
    for op in region.ops:
        if op.name != "all_reduce" or not crosses_microbatches(op) or len(op.params["axes"]) == 1:
            ops.append(op)
            continue
        (term,), (result,) = op.inputs, op.outputs
        rest = tuple(axis for axis in op.params["axes"] if axis != MICROBATCH)
        half = term.like(partial=((MICROBATCH,), op.params["monoid"]))
        ops.append(op.on((term,), (half,), {**op.params, "axes": rest}))
        ops.append(op.on((half,), (result,), {**op.params, "axes": (MICROBATCH,)}))
    region.ops = ops


def _sum_late(region: Program) -> None:
    """Moves reductions of a region to its end, those of the terms of a sum as one."""
    changed = True
    while changed:
        changed = reduce_late(region, {}, enlarging=True)
        changed |= sum_before_reducing(region, {})


def _reduce_after_stacking(program: Program) -> None:
    """Reduces what a loop stacks once, after the loop, instead of in every turn."""
    ops: list[Op] = []
    for op in program.ops:
        ops.append(op)
        if op.name != "scan":
            continue
        (body,) = op.regions
        makers = {v: o for o in body.ops for v in o.outputs}
        uses = Counter(v for o in body.ops for v in o.inputs)
        uses.update(body.outputs)
        for i in range(op.params["num_carry"], len(op.outputs)):
            chain = _reduced_last(body.outputs[i], makers, uses)
            if chain is None:
                continue
            (term,), stacked = chain[0].inputs, op.outputs[i]
            now = stacked.like(partial=term.partial)
            now.dtype = term.dtype
            body.outputs = (*body.outputs[:i], term, *body.outputs[i + 1 :])
            body.ops = [o for o in body.ops if o not in chain]
            op.outputs = (*op.outputs[:i], now, *op.outputs[i + 1 :])
            for one in chain:
                result = stacked if one is chain[-1] else stacked.like()
                result.dtype = one.outputs[0].dtype
                ops.append(one.on((now,), (result,)))
                now = result
    program.ops = ops


def _reduced_last(
    value: Value, makers: Mapping[Value, Op], uses: Mapping[Value, int]
) -> list[Op] | None:
    """A reduction over micro-batches and the changes of precision from it to a value that nothing
    else reads; None where the value is no such.
    """
    chain: list[Op] = []
    while uses[value] == 1 and (op := makers.get(value)) is not None:
        chain.insert(0, op)
        if crosses_microbatches(op):
            return chain if op.name == "all_reduce" else None
        traits = traits_of(op.name)
        if not (traits.elementwise and traits.relayout) or len(op.inputs) > 1:
            return None
        (value,) = op.inputs
    return None


def crosses_microbatches(op: Op) -> bool:
    """True if an op of a lowered program reads other micro-batches than its own."""
    return op.name in COLLECTIVES and is_over(op, MICROBATCH)


def knows_microbatch(op: Op) -> bool:
    """True if an op of a lowered program, or one inside it, depends on the micro-batch's number."""
    if op.name in LOCAL:
        return is_over(op, MICROBATCH)
    return any(knows_microbatch(inner) for region in op.regions for inner in region.ops)


def _in_time(program: Program, microbatches: int) -> None:
    """Writes reductions and gathers over micro-batches as `accumulate` and `collect`, each before
    what is left of it over the axes of the mesh.
    """
    ops: list[Op] = []
    for op in program.ops:
        if not crosses_microbatches(op) or op.name not in ("all_reduce", "all_gather"):
            ops.append(op)
            continue
        (term,), (result,) = op.inputs, op.outputs
        rest = tuple(axis for axis in op.params["axes"] if axis != MICROBATCH)
        first = result if not rest else _halfway(op, term, rest, microbatches)
        name, params = "accumulate", {"monoid": op.params.get("monoid", "sum")}
        if op.name == "all_gather":
            name, params = "collect", {"dim": op.params["dim"]}
        ops.append(op.beside(name, (term,), first, params))
        if rest:
            ops.append(op.on((first,), (result,), {**op.params, "axes": rest}))
    collected: dict[Value, Value] = {}
    for value in dict.fromkeys(program.outputs):
        dims = [d for d, axes in enumerate(value.layout or ()) if MICROBATCH in axes]
        if dims:
            collected[value] = without_microbatches(value, microbatches)
            ops.append(Op("collect", None, (value,), (collected[value],), {"dim": dims[0]}))
    program.ops = ops
    program.outputs = tuple(collected.get(v, v) for v in program.outputs)


def _halfway(op: Op, term: Value, rest: tuple[str, ...], microbatches: int) -> Value:
    """The value after an exchange over micro-batches, before that over the `rest` of its axes."""
    if op.name == "all_reduce":
        return term.like(partial=(rest, op.params["monoid"]))
    return without_microbatches(term, microbatches)


def without_microbatches(value: Value, microbatches: int) -> Value:
    """A value for all micro-batches of one that is tiled over them."""
    layout = value.layout or ()
    dim = next(d for d, axes in enumerate(layout) if MICROBATCH in axes)
    rows = value.shape[dim] * microbatches
    kept = tuple(tuple(a for a in axes if a != MICROBATCH) for axes in layout)
    return value.like((*value.shape[:dim], rows, *value.shape[dim + 1 :]), kept)
