"""Divides layers of a traced step into parts that run in turn: a loop over parts for the forward
pass of a layer, and one for its backward pass, which computes the forward pass of the part again.

The parts are those of a mesh axis that there is in time alone: the tactic for matrices in pairs and
propagation tell what is tiled over it, and lowering writes the program of one part. What it would
sum over devices is summed over turns, and what is tiled is put together behind them.
"""

from __future__ import annotations

import graphlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..decide.actions import Action, Context
from ..decide.graph import Graph
from ..decide.repropagate import apply_tactic
from ..decide.sharding import Decisions
from ..ir.disjoint_sets import DisjointSets
from ..ir.execute import Coordinates, evaluate
from ..ir.ordering import stable_order
from ..ir.program import COLLECTIVES, Op, Program, Value
from ..ir.trace import trace
from ..lower.lower import lower
from ..tactics.manual import path_pattern
from ..tactics.weights import Megatron
from .parts import CoShard

#: The axis of parts. It is no identifier, so that no axis of a mesh has its name.
PART = "co-shard part"


def co_shard(program: Program, wanted: CoShard, weights: Collection[str] = ()) -> None:
    """Rewrites a traced step.

    Args:
      program: the step, in canonical form.
      wanted: which layers, and how many parts.
      weights: names of the arguments that are a model's parameters.

    Raises:
      ValueError: no pair of matrices is named or divides, or a part needs what another one makes.
    """
    graph = Graph(program, weights)
    state = Decisions({PART: wanted.parts})
    tactic = Megatron(PART)
    context = Context(graph, state, (tactic.name,))
    actions = _chosen(graph, tactic.actions(context), wanted)
    apply_tactic(context, actions, PART, graph.work)
    layers = _layers(program, graph, state)
    if not layers:
        raise ValueError(
            f"CoShard(paths={wanted.paths!r}): the layers stand in a loop or are never computed; "
            "give the layers arrays of their own"
        )
    for forward, backward in layers:
        inside = {*forward, *backward}
        read = {v for op in program.ops if op not in inside for v in op.inputs}
        read.update(program.outputs)
        made = {v for op in backward for v in op.inputs}
        turns = [_in_turn(graph, state, wanted.parts, forward, forward, read)]
        if backward:
            again = _needed(forward, made)
            turns.append(_in_turn(graph, state, wanted.parts, backward, [*again, *backward], read))
        _replace(program, inside, turns)
    program.drop_dead()


def _chosen(graph: Graph, actions: Sequence[Action], wanted: CoShard) -> list[Action]:
    """The actions on matrices of the paths."""
    origins = graph.structure.origins
    patterns = [path_pattern(path) for path in wanted.paths]

    def path(action: Action) -> str:
        return origins.get(action.value, action.value).path

    found = [a for a in actions if any(p.fullmatch(path(a)) for p in patterns)]
    if not found:
        there = ", ".join(dict.fromkeys(map(path, actions))) or "none"
        raise ValueError(
            f"CoShard(paths={wanted.paths!r}) names no first matrix of a pair that divides into "
            f"{wanted.parts} parts; there are {there}"
        )
    return found


def _layers(program: Program, graph: Graph, state: Decisions) -> list[tuple[list[Op], list[Op]]]:
    """For each layer its ops of the forward and of the backward pass, in order."""
    nodes = ((op, graph.of.get(op)) for op in program.ops)
    tiled = {op for op, node in nodes if node is not None and PART in state.factors.get(node, {})}
    depends = set(graph.structure.data)
    after: set[Value] = set()
    forward: set[Op] = set()
    backward: set[Op] = set()
    for op in program.ops:
        if not depends.isdisjoint(op.inputs):
            depends.update(op.outputs)
            if op in tiled and op.backward:
                backward.add(op)
            elif op in tiled and after.isdisjoint(op.inputs):
                forward.add(op)
        if op.backward or not after.isdisjoint(op.inputs):
            after.update(op.outputs)
    sets: DisjointSets[Op] = DisjointSets()
    inside = [op for op in program.ops if op in forward or op in backward]
    for op in inside:
        for value in op.inputs:
            maker = graph.makers.get(value)
            joined = maker in forward or maker in backward
            if maker is not None and joined and state.tiles.get(value, {}).get(PART, -1) >= 0:
                sets.join(op, maker)
    groups: dict[Op, tuple[list[Op], list[Op]]] = {}
    for op in inside:
        groups.setdefault(sets.root(op), ([], []))[op in backward].append(op)
    return [(one, two) for one, two in groups.values() if one]


def _needed(ops: Sequence[Op], values: Iterable[Value]) -> list[Op]:
    """The ops that values need."""
    wanted, found = set(values), []
    for op in reversed(ops):
        if not wanted.isdisjoint(op.outputs):
            found.append(op)
            wanted.update(op.inputs)
    return found[::-1]


def _in_turn(
    graph: Graph,
    state: Decisions,
    parts: int,
    making: Sequence[Op],
    ops: Sequence[Op],
    read: Collection[Value],
) -> list[Op]:
    """The ops of a loop over parts.

    Args:
      making: the ops that make results.
      ops: those and what they need computed again, in order.
      read: the values that others read.
    """
    known = {v for op in ops for v in op.outputs}
    used = list(dict.fromkeys(v for op in ops for v in op.inputs))
    results = [v for op in making for v in op.outputs if v in read]
    constants = tuple(v for v in graph.program.constants if v in used)
    inputs = tuple(v for v in used if v.data is None and v not in known)
    part = Program(inputs, tuple(results), [*ops], constants)
    local, sums = _of_one_part(part, graph, state, parts)

    def run(*arrays: Any) -> list[Any]:
        def turn(carry: Sequence[Any], number: Any) -> tuple[list[Any], list[Any]]:
            here = Coordinates({PART: parts}, {PART: number})
            pairs = zip(local.inputs, arrays, strict=True)
            found = evaluate(local, [_part_of(v, x, number) for v, x in pairs], here)
            added = [carry[i] + found[at] for i, at in enumerate(sums)]
            return added, [x for at, x in enumerate(found) if at not in sums]

        zeros = [jnp.zeros(local.outputs[at].shape, local.outputs[at].dtype) for at in sums]
        added, stacked = lax.scan(turn, zeros, jnp.arange(parts, dtype=jnp.int32))
        both = iter(added), iter(stacked)
        return [
            next(both[0]) if at in sums else _together(value, next(both[1]))
            for at, value in enumerate(local.outputs)
        ]

    traced = trace(run, *[jax.ShapeDtypeStruct(v.shape, v.dtype) for v in inputs])
    env = dict(zip(traced.inputs, inputs, strict=True))
    env.update(zip(traced.outputs, results, strict=True))
    like = making[0]
    for op in traced.walk():
        op.source_info, op.prefix = like.source_info, like.scope
    for op in traced.ops:
        op.inputs = tuple(env.get(v, v) for v in op.inputs)
        op.outputs = tuple(env.get(v, v) for v in op.outputs)
    graph.program.constants = (*graph.program.constants, *traced.constants)
    return traced.ops


def _of_one_part(
    part: Program, graph: Graph, state: Decisions, parts: int
) -> tuple[Program, list[int]]:
    """The local program of one part, and which of its results are summed over parts."""
    own, decided = Graph(part), Decisions({PART: parts})
    values = {v for op in part.ops for v in (*op.inputs, *op.outputs)}
    for value in values:
        tile = state.tiles.get(value, {}).get(PART)
        if tile is not None:
            decided.set_value(value, PART, tile, None)
    for op in part.ops:
        decided.set_node(own.of[op], PART, state.factors[graph.of[op]][PART])
    local = lower(own, decided)
    makers = {v: op for op in local.ops for v in op.outputs}
    outputs, sums = [], []
    for at, value in enumerate(local.outputs):
        maker = makers.get(value)
        if maker is not None and maker.name == "all_reduce" and maker.params["monoid"] == "sum":
            sums.append(at)
            value = maker.inputs[0]
        outputs.append(value)
    local.outputs = tuple(outputs)
    local.drop_dead()
    left = next((op for op in local.ops if op.name in COLLECTIVES), None)
    if left is not None:
        raise ValueError(
            f"CoShard: a part needs what another one makes ({left.name} at "
            f"{left.source or 'an unknown line'}); leave this layer out"
        )
    return local, sums


def _dim(value: Value) -> int | None:
    """The dimension of a value that is tiled over parts."""
    return next((d for d, axes in enumerate(value.layout or ()) if PART in axes), None)


def _part_of(value: Value, array: Any, number: Any) -> Any:
    """The part of an array that a turn reads."""
    dim = _dim(value)
    if dim is None:
        return array
    size = value.shape[dim]
    return lax.dynamic_slice_in_dim(array, number * size, size, dim)


def _together(value: Value, stacked: Any) -> Any:
    """An array of its parts [parts, ...]."""
    dim = _dim(value)
    assert dim is not None, value
    rows = jnp.moveaxis(stacked, 0, dim)
    shape = stacked.shape[1:]
    return rows.reshape(*shape[:dim], stacked.shape[0] * shape[dim], *shape[dim + 1 :])


def _replace(program: Program, inside: Collection[Op], turns: Sequence[Sequence[Op]]) -> None:
    """Puts loops in the place of ops, each behind what it reads."""
    place = {op: at for at, op in enumerate(program.ops)}
    ops = [op for op in program.ops if op not in inside]
    first = min(place[op] for op in inside)
    new = [op for loop in turns for op in loop]
    place.update((op, first) for op in new)
    makers = {v: op for op in (*ops, *new) for v in op.outputs}
    every = sorted((*ops, *new), key=place.__getitem__)
    try:
        program.ops = stable_order(
            {op: {makers[v] for v in op.inputs if v in makers} for op in every}
        )
    except graphlib.CycleError:
        raise ValueError(
            "CoShard: what a layer makes comes back into it, as where the heads of an attention do "
            "not divide into the parts; take fewer parts, name fewer matrices, or give the layers "
            "arrays of their own"
        ) from None
