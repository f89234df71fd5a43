"""Ops whose results nobody reads go."""

from __future__ import annotations

from collections.abc import Mapping

from ...ir.program import Op, Program


def drop_dead(program: Program, mesh: Mapping[str, int]) -> bool:
    """Drops dead ops of one region."""
    del mesh
    needed = set(program.outputs)
    kept: list[Op] = []
    for op in reversed(program.ops):
        if op.effects or any(v in needed for v in op.outputs):
            needed.update(op.inputs)
            kept.append(op)
    changed = len(kept) != len(program.ops)
    kept.reverse()
    program.ops = kept
    return changed
