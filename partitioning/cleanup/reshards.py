"""A slice of what was just gathered: nothing, or an all-to-all."""

from __future__ import annotations

from collections.abc import Mapping

from ..program import Op, Program, Value
from ..reshard import retiled, steps
from .rewrite import Region, like


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
            ops.append(like(op, name, (value,), result, params))
            value = result
        before[op] = ops
        replaced[target] = value
    if replaced:
        region.apply(replaced, before, {region.maker[v] for v in replaced})
    return bool(replaced)
