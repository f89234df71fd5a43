"""Collectives that need not run inside a region: a loop's invariant gathers go before it, sums
after it.
"""

from __future__ import annotations

from collections.abc import Mapping

from jax import lax

from ...ir.program import COLLECTIVES, Op, Program, Value
from ...rules import is_zero, traits_of
from ..turns import zeros_like
from .rewrite import Region, stays_whole


def gather_before_loop(program: Program, mesh: Mapping[str, int]) -> bool:
    """An all_gather of what a loop only reads happens once, before the loop."""
    del mesh
    before: dict[Op, list[Op]] = {}
    for op in program.ops:
        if op.name == "scan":
            hoisted = _hoist(op, op.regions[0], 0, op.params["num_consts"], "num_consts")
        elif op.name == "while":
            conds, bodies = op.params["cond_nconsts"], op.params["body_nconsts"]
            hoisted = _hoist(op, op.regions[1], conds, bodies, "body_nconsts")
        else:
            continue
        if hoisted:
            before[op] = hoisted
    if before:
        Region(program).apply({}, before)
    return bool(before)


def _hoist(op: Op, body: Program, offset: int, count: int, counter: str) -> list[Op]:
    """Moves gathers of what the body makes of its first `count` inputs alone out of it; `offset`
    is where those stand among the operands.
    """
    outside = dict(zip(body.inputs[:count], op.inputs[offset : offset + count], strict=True))
    fixed: dict[Value, Op] = {}
    replaced: dict[Value, Value] = {}
    moved: list[Op] = []

    def move(inner: Op) -> None:
        """Writes an op outside, after the ops that it reads."""
        for value in inner.inputs:
            if value in fixed and value not in outside:
                move(fixed[value])
        made = [value.like() for value in inner.outputs]
        for value, copy in zip(inner.outputs, made, strict=True):
            copy.whole, outside[value] = value.whole, copy
        moved.append(inner.on([outside.get(v, v) for v in inner.inputs], made))

    gathers: list[Value] = []
    for inner in body.ops:
        if inner.regions or inner.effects or any(v.partial for v in inner.outputs):
            continue
        if not all(v.data is not None or v in outside or v in fixed for v in inner.inputs):
            continue
        fixed.update(dict.fromkeys(inner.outputs, inner))
        if inner.name == "all_gather":
            move(inner)
            gathers.append(inner.outputs[0])
            replaced[inner.outputs[0]] = inner.outputs[0].like()
    if not moved:
        return []
    end = offset + count
    op.inputs = (*op.inputs[:end], *(outside[v] for v in gathers), *op.inputs[end:])
    body.inputs = (*body.inputs[:count], *replaced.values(), *body.inputs[count:])
    op.params = {**op.params, counter: count + len(gathers)}
    Region(body).apply(replaced, dropped={fixed[v] for v in gathers})
    body.drop_dead()
    return moved


def reduce_after_loop(program: Program, mesh: Mapping[str, int]) -> bool:
    """Reduces a carry once, after the loop, where every turn adds a reduced value to it."""
    del mesh
    region = Region(program)
    before: dict[Op, list[Op]] = {}
    after: dict[Op, list[Op]] = {}
    replaced: dict[Value, Value] = {}
    for op in program.ops:
        if op.name != "scan":
            continue
        for index in range(op.params["num_carry"]):
            _sink(region, op, index, before, after, replaced)
    if not after:
        return False
    fixed: set[Op] = {new for ops in after.values() for new in ops}
    ops: list[Op] = []
    for op in program.ops:
        ops += [*before.get(op, ()), op, *after.get(op, ())]
    for op in ops:
        if op not in fixed:
            op.inputs = tuple(replaced.get(v, v) for v in op.inputs)
    program.outputs = tuple(replaced.get(v, v) for v in program.outputs)
    program.ops = ops
    return True


def _sink(
    outer: Region,
    op: Op,
    index: int,
    before: dict[Op, list[Op]],
    after: dict[Op, list[Op]],
    replaced: dict[Value, Value],
) -> None:
    (body,) = op.regions
    consts = op.params["num_consts"]
    inner = Region(body)
    carried, result = body.inputs[consts + index], body.outputs[index]
    add = inner.maker.get(result)
    if (
        add is None
        or traits_of(add.name).signs != (1, 1)
        or carried not in add.inputs
        or not (inner.single(carried) and inner.single(result))
    ):
        return
    reduced = add.inputs[1] if add.inputs[0] is carried else add.inputs[0]
    reduction = inner.maker.get(reduced)
    if reduction is None or reduction.name not in ("all_reduce", "reduce_scatter"):
        return
    if (
        reduction.params["monoid"] != "sum"
        or not inner.single(reduced)
        or reduced.shape != carried.shape
    ):
        return
    term = reduction.inputs[0]
    owed = reduction.inputs[0].partial
    assert owed is not None

    def partial() -> Value:
        # The weak type is part of what a carry must keep.
        value = carried.like(term.shape, term.layout, owed)
        value.dtype = term.dtype
        return value

    # The carry becomes the sum of what is owed, from zero; the old start is added after the
    # reduction.
    start, total, summed = partial(), op.outputs[index], partial()
    body.inputs = (*body.inputs[: consts + index], start, *body.inputs[consts + index + 1 :])
    new_add = add.beside("add", (start, term), summed, primitive=lax.add_p)
    body.ops = [new_add if o is add else o for o in body.ops if o is not reduction]
    body.outputs = (*body.outputs[:index], summed, *body.outputs[index + 1 :])
    fill, zeros = zeros_like(op, start)
    before.setdefault(op, []).append(fill)
    init = op.inputs[consts + index]
    op.inputs = (*op.inputs[: consts + index], zeros, *op.inputs[consts + index + 1 :])
    # Where turns are split, their sum is owed besides.
    more = total.partial[0] if total.partial else ()
    owing = partial()
    owing.partial = ((*owed[0], *more), owed[1])
    op.outputs = (*op.outputs[:index], owing, *op.outputs[index + 1 :])
    whole = total.like(partial=total.partial)
    steps = after.setdefault(op, [])
    steps.append(reduction.on((owing,), (whole,)))
    if not is_zero(init, outer.maker):
        started = total.like()
        steps.append(add.beside("add", (init, whole), started, primitive=lax.add_p))
        whole = started
    replaced[total] = whole


def reduce_after_checkpoint(program: Program, mesh: Mapping[str, int]) -> bool:
    """A reduction at the end of a checkpointed region happens after it, where it may meet
    others.
    """
    del mesh
    ops: list[Op] = []
    changed = False
    for op in program.ops:
        ops.append(op)
        if op.name != "checkpoint":
            continue
        (body,) = op.regions
        inner = Region(body)
        for index, result in enumerate(body.outputs):
            reduction = inner.maker.get(result)
            if reduction is None or reduction.name not in ("all_reduce", "reduce_scatter"):
                continue
            if not inner.single(result) or stays_whole(reduction):
                continue
            (term,) = reduction.inputs
            whole = op.outputs[index]
            owing = term.like(partial=term.partial)
            body.outputs = (*body.outputs[:index], term, *body.outputs[index + 1 :])
            body.ops = [o for o in body.ops if o is not reduction]
            op.outputs = (*op.outputs[:index], owing, *op.outputs[index + 1 :])
            ops.append(reduction.on((owing,), (whole,)))
            changed = True
    program.ops = ops
    return changed


def turn_alone(program: Program, mesh: Mapping[str, int]) -> bool:
    """Lets each device turn a loop of examples only as often as its own examples need, where the
    loop holds no exchange between devices.

    The carries of an example stay as they are once its condition fails, so that a device may stop
    before the others do.
    """
    del mesh
    changed = False
    for op in program.ops:
        rank = op.params.get("masked", 0)
        if not rank:
            continue
        cond, body = op.regions
        maker = Region(cond).maker
        asked = maker.get(cond.outputs[0])
        if asked is None or asked.name != "all_reduce":
            continue
        local = maker.get(asked.inputs[0])
        inside = [o for region in op.regions for o in region.walk() if o is not asked]
        if local is None or any(o.name in COLLECTIVES or traits_of(o.name).host for o in inside):
            continue
        axes = set(asked.params["axes"])

        def share(value: Value, axes: set[str] = axes, rank: int = rank) -> list[set[str]]:
            return [axes.intersection(names) for names in (value.layout or ())[:rank]]

        wanted = share(local.inputs[0])
        if all(share(v) == wanted for v in body.outputs):
            (alone,) = asked.inputs
            alone.partial = None
            cond.outputs = (alone,)
            cond.ops = [o for o in cond.ops if o is not asked]
            changed = True
    return changed
