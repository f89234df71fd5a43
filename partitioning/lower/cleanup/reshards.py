"""A slice of what was just gathered, or a gather of what was sliced: nothing, or an all-to-all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jax import lax

from ...ir.program import Op, Program, Value
from ...rules import REPLICATED_FACTOR, rule_of, traits_of
from ..reshard import retiled, steps
from .rewrite import Region


def slice_of_gather(program: Program, mesh: Mapping[str, int]) -> bool:
    """`all_slice(all_gather(x))` becomes x, or what leads from x's layout to the slice's without a
    gather.
    """
    region = Region(program)
    replaced: dict[Value, Value] = {}
    before: dict[Op, list[Op]] = {}
    for op in program.ops:
        if op.name != "all_slice":
            continue
        gather = region.made_by(op.inputs[0], "all_gather")
        if gather is None:
            continue
        source, target = gather.inputs[0], op.outputs[0]
        assert source.layout is not None
        assert target.layout is not None
        path = steps(source.layout, target.layout)
        if path:
            # While others read the gathered array, slicing it moves nothing.
            slices = all(
                u is not None and u.name == "all_slice" for u in region.users[op.inputs[0]]
            )
            if not slices or any(name == "all_gather" for name, _, _ in path):
                continue
        value, ops = source, []
        for name, params, layout in path:
            result = retiled(value, layout, mesh)
            ops.append(op.beside(name, (value,), result, params))
            value = result
        before[op] = ops
        replaced[target] = value
    if replaced:
        region.apply(replaced, before, {region.maker[v] for v in replaced})
    return bool(replaced)


def gather_of_slice(program: Program, mesh: Mapping[str, int]) -> bool:
    """`all_gather(all_slice(x))` becomes x, where that is whole again."""
    del mesh
    region = Region(program)
    replaced: dict[Value, Value] = {}
    for op in program.ops:
        if op.name != "all_gather":
            continue
        cut = region.made_by(op.inputs[0], "all_slice")
        if cut is not None and cut.inputs[0].layout == op.outputs[0].layout:
            replaced[op.outputs[0]] = cut.inputs[0]
    if replaced:
        region.apply(replaced, None, {region.maker[v] for v in replaced})
    return bool(replaced)


def gather_together(program: Program, mesh: Mapping[str, int]) -> bool:
    """A concatenation of gathers of alike arrays becomes one gather of them, stacked.

    As the gates of an LSTM are, backward: what a message costs to begin is paid once.
    """
    region = Region(program)
    before: dict[Op, list[Op]] = {}
    dropped: set[Op] = set()
    for op in program.ops:
        if not traits_of(op.name).joins or len(op.inputs) < 2:
            continue
        gathers = [region.made_by(v, "all_gather") for v in op.inputs]
        if not all(map(region.single, op.inputs)):
            continue
        first, at, count = gathers[0], op.params.get("dimension"), len(gathers)
        if at is None:  # A stack joins along a dimension that its operands do not have.
            continue
        if first is None or not all(g is not None and _gather_alike(first, g) for g in gathers):
            continue
        made: list[Op] = []

        def make(
            name: str, inputs: tuple[Value, ...], result: Value, params: Any, op: Op = op
        ) -> Value:
            made.append(op.beside(name, inputs, result, params, _PRIMITIVES.get(name)))  # noqa: B023
            return result

        source, whole = first.inputs[0], first.outputs[0]
        assert source.layout is not None
        assert whole.layout is not None
        if whole.layout[at]:
            continue
        shape, layout = (1, *source.shape), ((), *source.layout)
        resized = {"new_sizes": shape, "dimensions": None, "sharding": None}
        rows = [
            make("reshape", (g.inputs[0],), source.like(shape, layout), resized)
            for g in gathers
            if g is not None
        ]
        stacked = source.like((count, *source.shape), layout)
        make("concatenate", tuple(rows), stacked, {"dimension": 0})
        result = whole.like((count, *whole.shape), ((), *whole.layout))
        params = {**first.params, "dim": first.params["dim"] + 1}
        make("all_gather", (stacked,), result, params)
        if at:
            order = (*range(1, at + 1), 0, *range(at + 1, result.ndim))
            moved = result.like(
                tuple(result.shape[d] for d in order),
                tuple(result.layout[d] for d in order),  # type: ignore[index]
            )
            result = make("transpose", (result,), moved, {"permutation": order})
        joined = op.outputs[0]
        resized = {"new_sizes": joined.shape, "dimensions": None, "sharding": None}
        make("reshape", (result,), joined, resized)
        before[op] = made
        dropped.update(g for g in gathers if g is not None)
        dropped.add(op)
    if before:
        region.apply({}, before, dropped)
    return bool(before)


_PRIMITIVES = {
    "concatenate": lax.concatenate_p,
    "reshape": lax.reshape_p,
    "transpose": lax.transpose_p,
}


def _gather_alike(first: Op, second: Op) -> bool:
    """True if two gathers do the same to arrays of one shape, layout and type."""
    return first.params == second.params and all(
        (a.shape, a.layout, a.dtype, a.weak_type, a.whole)
        == (b.shape, b.layout, b.dtype, b.weak_type, b.whole)
        for a, b in ((first.inputs[0], second.inputs[0]), (first.outputs[0], second.outputs[0]))
    )


def gather_early(program: Program, mesh: Mapping[str, int]) -> bool:
    """`all_gather(view(x))` becomes `view(all_gather(x))`, where it may be one that others need."""
    region = Region(program)
    before: dict[Op, list[Op]] = {}
    dropped: set[Op] = set()
    for op in program.ops:
        if op.name != "all_gather":
            continue
        views: list[Op] = []
        dim: int | None = op.params["dim"]
        value = op.inputs[0]
        while (view := region.maker.get(value)) is not None and _rearranges(view):
            source = view.inputs[0]
            if not region.single(value) or source.data is not None or source.size != value.size:
                break
            earlier = _origin(view, dim) if dim is not None else None
            # A tile of a dimension whose local size is 1 may be merged into another: that one is
            # the local dimension's origin and does not hold the tile.
            if earlier is None or not _holds(source, earlier, op.params["axes"]):
                break
            views.append(view)
            dim, value = earlier, source
        if not views:
            continue
        assert dim is not None
        assert value.layout is not None
        axes = op.params["axes"]
        layout = tuple(
            a[: len(a) - len(axes)] if d == dim else a for d, a in enumerate(value.layout)
        )
        whole = retiled(value, layout, mesh)
        ops = [op.on((value,), (whole,), {**op.params, "dim": dim})]
        for view in reversed(views):
            made = view.outputs[0] if view is not views[0] else None
            result = op.outputs[0] if made is None else _gathered(made, axes, mesh)
            rule = rule_of(view)
            params = view.params
            if rule is not None and rule.localize is not None:
                params = rule.localize(params, [whole.shape], [result.shape])
            ops.append(view.on((whole,), (result,), params))
            whole = result
        before[op] = ops
        dropped.add(op)
        dropped.update(views)
    if before:
        region.apply({}, before, dropped)
    return bool(before)


def _origin(view: Op, dim: int) -> int | None:
    """The operand dimension that is the result's `dim`, whole; None where there is none."""
    rule = rule_of(view)
    if (
        rule is None
        or (factor := rule.results[0][dim]) == REPLICATED_FACTOR
        or factor not in rule.operands[0]
    ):
        return None
    found = rule.operands[0].index(factor)
    sizes = view.inputs[0].shape[found], view.outputs[0].shape[dim]
    return found if sizes == (rule.sizes[factor],) * 2 else None


def _holds(value: Value, dim: int, axes: tuple[str, ...]) -> bool:
    """True if these are the minor axes that the dimension is tiled over."""
    assert value.layout is not None
    return value.layout[dim][-len(axes) :] == axes


def _gathered(made: Value, axes: tuple[str, ...], mesh: Mapping[str, int]) -> Value:
    """The result of a view of its gathered operand."""
    assert made.layout is not None
    return retiled(made, tuple(tuple(a for a in d if a not in axes) for d in made.layout), mesh)


def share_equal(program: Program, mesh: Mapping[str, int]) -> bool:
    """Equal gathers, slices and views of one array become one."""
    del mesh
    return _share(
        program,
        [
            op
            for op in program.ops
            if (op.name in _SHARED or _rearranges(op)) and op.inputs[0].data is None
        ],
    )


def reduce_once(program: Program, mesh: Mapping[str, int]) -> bool:
    """Equal sums over devices become one, with what leads to them."""
    del mesh
    kinds: dict[object, int] = {}
    last = 0
    for place, op in enumerate(program.ops):
        if op.name == "all_reduce":
            kind = op.outputs[0].shape, *op.params.values()
            last = place + 1 if kind in kinds else last
            kinds[kind] = place
    # What comes after the last sum that may equal another leads to none.
    return bool(last) and _share(
        program, [op for op in program.ops[:last] if op.inputs and not (op.regions or op.effects)]
    )


def _share(program: Program, candidates: Iterable[Op]) -> bool:
    """Of equal ops among the candidates the first one serves all."""
    known: dict[object, Op | list[Op]] = {}
    replaced: dict[Value, Value] = {}
    gone: set[Op] = set()
    for op in candidates:
        arrays = [replaced.get(v, v) for v in op.inputs if v.data is None]
        key: tuple[object, ...] = (op.name, *arrays)
        if not arrays:
            key = (op.name, op.outputs[0].shape, *map(_identity, op.inputs))
        other = known.setdefault(key, op)
        if other is op:
            continue
        others = other if isinstance(other, list) else [other]
        first = next((o for o in others if _alike(o, op, replaced)), None)
        if first is None:
            known[key] = [*others, op]
            continue
        replaced.update(zip(op.outputs, first.outputs, strict=True))
        gone.add(op)
    if replaced:
        Region(program).apply(replaced, None, gone)
    return bool(replaced)


def _identity(value: Value) -> object:
    """The identity of a value: itself, or of a literal its bits."""
    if value.data is None or value.shape or not isinstance(value.dtype, np.dtype):
        return value
    return value.dtype, np.asarray(value.data).tobytes()


def _alike(first: Op, second: Op, replaced: Mapping[Value, Value]) -> bool:
    """True if two ops of one name on the same arrays compute the same."""
    if first.params is not second.params:
        try:
            if first.params != second.params:
                return False
        except ValueError:  # params that hold arrays
            return False
    return all(
        (a.layout, a.whole, a.dtype, a.weak_type) == (b.layout, b.whole, b.dtype, b.weak_type)
        for a, b in zip(first.outputs, second.outputs, strict=True)
    ) and all(
        _identity(replaced.get(a, a)) == _identity(replaced.get(b, b))
        for a, b in zip(first.inputs, second.inputs, strict=True)
    )


def _rearranges(op: Op) -> bool:
    return traits_of(op.name).rearranges


_SHARED = frozenset(["all_gather", "all_slice", "all_to_all"])
