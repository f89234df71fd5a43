"""Reductions over the mesh: sliced ones scatter, and sums of them are reduced once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

from jax import lax

from ...ir.program import Layout, Op, Program, Value
from ...rules import REPLICATED_FACTOR, rule_of, traits_of
from ..reshard import retiled
from .rewrite import Region, stays_whole


def scatter_reductions(program: Program, mesh: Mapping[str, int]) -> bool:
    """`all_slice(all_reduce(x))` becomes `reduce_scatter(x)`.

    Only where every reader of the all_reduce is the same slice, over one of the reduced axes at
    least. Reduced axes that are not sliced are reduced afterwards, and what else the slice does
    stays a slice, both of the smaller value.
    """
    region = Region(program)
    replaced: dict[Value, Value] = {}
    before: dict[Op, list[Op]] = {}
    dropped: set[Op] = set()
    for op in program.ops:
        if op.name != "all_reduce" or op.params["monoid"] != "sum" or stays_whole(op):
            continue
        users = region.users.get(op.outputs[0], [])
        first = users[0] if users else None
        if first is None or first.name != "all_slice":
            continue
        slices = first.params["slices"]
        if any(u is None or u.name != "all_slice" or u.params["slices"] != slices for u in users):
            continue
        plan = _scatter_plan(slices, op.params["axes"])
        if plan is None:
            continue
        earlier, scatters, later, left = plan
        value, ops = op.inputs[0], []
        if any(earlier):
            result = retiled(value, _tiled(value, earlier), mesh)
            result.partial = value.partial
            ops.append(op.beside("all_slice", (value,), result, {"slices": earlier}))
            value = result
        for index, (dim, axes) in enumerate(scatters):
            slices_here = tuple(axes if d == dim else () for d in range(value.ndim))
            result = retiled(value, _tiled(value, slices_here), mesh)
            if rest := (*(a for _, names in scatters[index + 1 :] for a in names), *left):
                result.partial = (rest, "sum")
            params = {"dim": dim, "axes": axes, "monoid": "sum"}
            ops.append(op.beside("reduce_scatter", (value,), result, params))
            value = result
        if left:
            result = value.like(value.shape, value.layout)
            params = {"axes": left, "monoid": "sum"}
            ops.append(op.beside("all_reduce", (value,), result, params))
            value = result
        if any(later):
            result = retiled(value, _tiled(value, later), mesh)
            ops.append(op.beside("all_slice", (value,), result, {"slices": later}))
            value = result
        before[op] = ops
        dropped.add(op)
        for user in dict.fromkeys(users):
            assert user is not None
            replaced[user.outputs[0]] = value
            dropped.add(user)
    if replaced:
        region.apply(replaced, before, dropped)
    return bool(replaced)


def _tiled(value: Value, slices: Layout) -> Layout:
    assert value.layout is not None
    return tuple(old + new for old, new in zip(value.layout, slices, strict=True))


def _scatter_plan(
    slices: Layout, reduced: tuple[str, ...]
) -> tuple[Layout, list[tuple[int, tuple[str, ...]]], Layout, tuple[str, ...]] | None:
    """Plans the scatters of a reduction that slices follow.

    Returns:
      The slices before, the (dimension, axes) of the scatters, the slices after, and the reduced
      axes that are left over; None where nothing scatters, or where axes that are not reduced lie
      between reduced ones of a dimension.
    """
    earlier: list[tuple[str, ...]] = []
    later: list[tuple[str, ...]] = []
    scatters: list[tuple[int, tuple[str, ...]]] = []
    used: set[str] = set()
    for dim, axes in enumerate(slices):
        places = [i for i, a in enumerate(axes) if a in reduced]
        if not places:
            earlier.append(axes)
            later.append(())
            continue
        first, end = places[0], places[-1] + 1
        if len(places) != end - first:
            return None
        earlier.append(axes[:first])
        later.append(axes[end:])
        scatters.append((dim, axes[first:end]))
        used.update(axes[first:end])
    left = tuple(a for a in reduced if a not in used)
    return (tuple(earlier), scatters, tuple(later), left) if used else None


def reduce_late(program: Program, mesh: Mapping[str, int], enlarging: bool = False) -> bool:
    """A reduction moves past linear ops that alone read it, to where sums, slices and loops'
    ends are seen.

    Args:
      program: changed in place.
      mesh: sizes of axes.
      enlarging: True if it also moves past ops that enlarge what is reduced, past products, and
        past slices over the mesh.
    """
    if not any(op.name in _REDUCTIONS for op in program.ops):
        return False
    uses = Counter(chain.from_iterable([op.inputs for op in program.ops]))
    uses.update(program.outputs)
    reductions: dict[Value, Op] = {}
    dropped: set[Op] = set()
    ops: list[Op] = []
    for op in program.ops:
        ops.append(op)
        if op.name in _REDUCTIONS:
            if (
                op.params["monoid"] == "sum"
                and not stays_whole(op)
                and uses.get(op.outputs[0]) == 1
            ):
                reductions[op.outputs[0]] = op
            continue
        if reductions.keys().isdisjoint(op.inputs):
            continue
        linear = _linear_in(op, enlarging)
        at = next((i for i in linear if op.inputs[i] in reductions), None)
        if at is None:
            continue
        reduction = reductions[op.inputs[at]]
        moved = _past(op, at, reduction, mesh)
        if moved is None:
            continue
        early, late = moved
        ops[-1:] = [early, late]
        dropped.add(reduction)
        if uses.get(late.outputs[0]) == 1:
            reductions[late.outputs[0]] = late
    program.ops = [op for op in ops if op not in dropped]
    return bool(dropped)


def _linear_in(op: Op, enlarging: bool) -> tuple[int, ...]:
    """The operands in which an op commutes with a sum over devices."""
    traits = traits_of(op.name)
    if not enlarging:
        return () if op.primitive is None else traits.linear
    if traits.flops == "matmul":
        return (0, 1)
    around = traits.surrounds
    surrounds = around >= 0 and op.inputs[around].data is not None and not op.inputs[around].data
    return (0,) if traits.broadcasts or surrounds else traits.linear


def _past(op: Op, at: int, reduction: Op, mesh: Mapping[str, int]) -> tuple[Op, Op] | None:
    """The linear op on the unreduced operand, and the reduction after it; None where they do not
    commute.
    """
    others = [v for i, v in enumerate(op.inputs) if i != at]
    term, result = reduction.inputs[0], op.outputs[0]
    assert result.layout is not None
    if op.primitive is None and not _is_whole(result, reduction):
        return None  # Each device would add up another slice.
    if traits_of(op.name).flops == "matmul":
        if reduction.name != "all_reduce" or not all(_is_whole(v, reduction) for v in others):
            return None
    elif any(v.data is None or v.shape for v in others):
        return None
    layout, params, local = result.layout, reduction.params, op.params
    if reduction.name == "reduce_scatter":
        axes = params["axes"]
        # Where the axes are in the result's layout, not where its sizes match: a tile of size 1
        # vanishes in a reshape, and what is left of its dimension may look like another one.
        dim = next((d for d, a in enumerate(layout) if a[len(a) - len(axes) :] == axes), None)
        if dim is None:
            return None
        layout = tuple(a[: len(a) - len(axes)] if d == dim else a for d, a in enumerate(layout))
        params = {**params, "dim": dim}
    owed = retiled(result, layout, mesh)
    owed.partial = term.partial
    rule = rule_of(op)
    if rule is not None and rule.localize is not None:
        local = rule.localize(local, [term.shape], [owed.shape])
    linear = op.on([term if i == at else v for i, v in enumerate(op.inputs)], (owed,), local)
    if reduction.name == "reduce_scatter":
        parts = math.prod(mesh[axis] for axis in params["axes"])
        if not _follows(linear, at, reduction.params["dim"], params["dim"], parts):
            return None
    return linear, op.beside(reduction.name, (owed,), result, params)


def _is_whole(value: Value, reduction: Op) -> bool:
    """True if all devices that a reduction is over have the same value."""
    axes = {axis for names in value.layout or () for axis in names}
    return axes.isdisjoint(reduction.params["axes"]) and not value.partial


def _follows(op: Op, at: int, dim: int, result_dim: int, parts: int) -> bool:
    """True if tiling the operand's dimension in so many parts tiles the result's."""
    rule = rule_of(op)
    if rule is None or (factor := rule.operands[at][dim]) == REPLICATED_FACTOR:
        return False
    return factor == rule.results[0][result_dim] and rule.sizes[factor] % parts == 0


_REDUCTIONS = frozenset(["all_reduce", "reduce_scatter"])


class _Leaf(NamedTuple):
    """A term of a sum: its sign, and where it is a reduced value the reduction."""

    value: Value
    sign: int
    reduction: Op | None


def sum_before_reducing(program: Program, mesh: Mapping[str, int]) -> bool:
    """`reduce(a) + reduce(b)` becomes `reduce(a + b)`, for all terms of a sum with equal
    reductions.

    Terms in between that are not reduced stay as they are.
    """
    del mesh
    if sum(op.name in _REDUCTIONS for op in program.ops) < 2:
        return False
    region = Region(program)
    inner: set[Op] = set()
    replaced: dict[Value, Value] = {}
    before: dict[Op, list[Op]] = {}
    dropped: set[Op] = set()
    for op in reversed(program.ops):
        if op in inner or not _adds(op):
            continue
        leaves: list[_Leaf] = []
        tree = [op]
        _collect(region, op, 1, leaves, tree)
        inner.update(tree)
        groups: dict[object, list[_Leaf]] = {}
        for leaf in leaves:
            if leaf.reduction is not None:
                groups.setdefault(_key(leaf), []).append(leaf)
        merged = {k: g for k, g in groups.items() if len(g) > 1}
        if not merged:
            continue
        ops: list[Op] = []
        terms: list[tuple[Value, int]] = []
        done: set[object] = set()
        for leaf in leaves:
            key = _key(leaf) if leaf.reduction is not None else None
            if key is None or key not in merged:
                terms.append((leaf.value, leaf.sign))
            elif key not in done:
                done.add(key)
                terms.append((_merge(op, merged[key], ops, dropped), 1))
        total = _add_up(op, terms, ops, None)
        before[op] = ops
        dropped.update(tree)
        replaced[op.outputs[0]] = total
    if replaced:
        region.apply(replaced, before, dropped)
    return bool(replaced)


def _adds(op: Op) -> bool:
    """True if an op is a sum of equal shapes and types, without broadcasting."""
    if not traits_of(op.name).signs:
        return False
    (result,) = op.outputs
    return all(v.shape == result.shape and v.dtype == result.dtype for v in op.inputs)


def _key(leaf: _Leaf) -> object:
    assert leaf.reduction is not None
    params = leaf.reduction.params
    return (
        leaf.reduction.name,
        params["axes"],
        params["monoid"],
        params.get("dim"),
        stays_whole(leaf.reduction),
    )


def _collect(region: Region, op: Op, sign: int, leaves: list[_Leaf], tree: list[Op]) -> None:
    """Walks the sum that ends in `op`, left to right, without recursion: sums may be long."""
    stack = _terms(op, sign)
    while stack:
        value, sign = stack.pop()
        maker = region.maker.get(value)
        single = region.single(value)
        if maker is not None and single and _adds(maker):
            tree.append(maker)
            stack += _terms(maker, sign)
            continue
        reduced = (
            maker is not None
            and single
            and maker.name in _REDUCTIONS
            and maker.params["monoid"] == "sum"
        )
        leaves.append(_Leaf(value, sign, maker if reduced else None))


def _terms(op: Op, sign: int) -> list[tuple[Value, int]]:
    """The signed terms of a sum, the last one first."""
    terms = zip(op.inputs, traits_of(op.name).signs, strict=True)
    return [(value, sign * own) for value, own in terms][::-1]


def _merge(root: Op, leaves: list[_Leaf], ops: list[Op], dropped: set[Op]) -> Value:
    """Writes the sum of partial values and its one reduction; returns the reduced sum."""
    terms: list[tuple[Value, int]] = []
    for leaf in leaves:
        assert leaf.reduction is not None
        dropped.add(leaf.reduction)
        terms.append((leaf.reduction.inputs[0], leaf.sign))
    total = _add_up(root, terms, ops, terms[0][0].partial)
    first = leaves[0].reduction
    assert first is not None
    reduced = root.outputs[0].like()
    reduced.whole = root.outputs[0].whole
    ops.append(root.beside(first.name, (total,), reduced, first.params))
    return reduced


def _add_up(
    root: Op,
    terms: list[tuple[Value, int]],
    ops: list[Op],
    partial: tuple[tuple[str, ...], str] | None,
) -> Value:
    """Writes the sum of signed terms, in order."""

    def write(name: str, primitive: object, inputs: tuple[Value, ...]) -> Value:
        result = inputs[0].like(partial=partial)
        result.weak_type = root.outputs[0].weak_type
        ops.append(root.beside(name, inputs, result, primitive=primitive))
        return result

    value, sign = terms[0]
    if sign < 0:
        value = write("neg", lax.neg_p, (value,))
    for term, sign in terms[1:]:
        name, primitive = ("add", lax.add_p) if sign > 0 else ("sub", lax.sub_p)
        value = write(name, primitive, (value, term))
    return value
