"""Conditions: taken apart where their results have nothing to do with one another, and written as
selections where their branches are steps on the batch.

An agent copies all its target networks under one condition, while each of them belongs to the stage
of its layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from ...ir.program import Op, Program, Value


def conditions_apart(program: Program) -> None:
    """Writes each condition as several, one for each set of results that share arrays."""
    program.ops = [part for op in program.ops for part in _parts(op)]


def _parts(op: Op) -> Iterator[Op]:
    """The conditions that an op is made of; the op itself where it is of one, or is none."""
    groups = _groups(op) if op.name == "cond" and not op.effects else ()
    if len(groups) < 2:
        yield op
        return
    index, *operands = op.inputs
    for results in groups:
        reads = sorted(set().union(*(_reads(op, i) for i in results)))
        regions = tuple(_restricted(region, reads, results) for region in op.regions)
        inputs = [index, *(operands[k] for k in reads)]
        yield op.on(inputs, [op.outputs[i] for i in results], regions=regions)


def _groups(op: Op) -> list[list[int]]:
    """The numbers of an op's results; those that read the same array are together."""
    found: list[tuple[set[int], list[int]]] = []
    arrays = {k for k, value in enumerate(op.inputs[1:]) if value.ndim}
    for i in range(len(op.outputs)):
        reads, together = _reads(op, i) & arrays, [i]
        apart = []
        for others, results in found:
            if others.isdisjoint(reads):
                apart.append((others, results))
            else:
                reads, together = reads | others, results + together
        found = [*apart, (reads, together)]
    return [sorted(results) for _, results in found]


def _reads(op: Op, result: int) -> set[int]:
    """The numbers of the operands that a result depends on, in any branch."""
    found: set[int] = set()
    for region in op.regions:
        needed = {region.outputs[result]}
        for inner in reversed(region.ops):
            if not needed.isdisjoint(inner.outputs):
                needed.update(inner.inputs)
        found.update(k for k, value in enumerate(region.inputs) if value in needed)
    return found


def _restricted(region: Program, inputs: Sequence[int], outputs: Sequence[int]) -> Program:
    """A branch of some of its operands and results."""
    kept = Program(
        tuple(region.inputs[k] for k in inputs), tuple(region.outputs[i] for i in outputs),
        [*region.ops], region.constants,
    )  # fmt: skip
    kept.drop_dead()
    read: set[Value] = {v for inner in kept.walk() for v in inner.inputs}
    kept.constants = tuple(v for v in kept.constants if v in read or v in kept.outputs)
    return kept


def conditions_selected(program: Program, chosen: Callable[[Op], bool]) -> None:
    """Writes conditions as the ops of all branches and a selection of their results.

    Args:
      program: changed in place, with the bodies of its loops.
      chosen: tells of an op whether a condition that holds it is written so.
    """
    ops: list[Op] = []
    for op in program.ops:
        for region in op.regions:
            conditions_selected(region, chosen)
        if op.name != "cond" or not any(chosen(o) for r in op.regions for o in r.walk()):
            ops.append(op)
            continue
        index, *operands = op.inputs
        results = []
        for region in op.regions:
            known = dict(zip(region.inputs, operands, strict=True))
            ops += [o.on([known.get(v, v) for v in o.inputs], o.outputs, None, o.regions)
                    for o in region.ops]  # fmt: skip
            results.append([known.get(v, v) for v in region.outputs])
            program.constants = tuple(dict.fromkeys((*program.constants, *region.constants)))
        which = index
        if len(op.regions) == 2 and index.dtype != np.dtype(bool):
            which = Value((), np.dtype(bool), layout=())
            zero = Value((), index.dtype, data=jnp.zeros((), index.dtype), layout=())
            ops.append(op.beside("ne", (index, zero), which, {}, lax.ne_p))
        for output, cases in zip(op.outputs, zip(*results, strict=True), strict=True):
            inputs = (which, *cases)
            ops.append(op.beside("select_n", inputs, output, {}, lax.select_n_p))
    program.ops = ops
