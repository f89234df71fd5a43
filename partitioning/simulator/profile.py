"""A symbolic profiler: FLOPs, bytes and activations per op and per module, without running
anything.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

from ..ir.program import Op, Program, Value
from ..ir.trace import trace
from ..rules import traits_of
from . import costs

_WRAPPER = re.compile(
    r"\b(?:jvp|transpose|vmap|remat|checkpoint|rematted_computation|custom_jvp|custom_vjp)\("
)
_CALL = re.compile(r"\bp?jit\([^()]*\)/?")
_NOISE = frozenset(
    ["", "while", "body", "cond", "checkpoint", "rematted_computation", "scan", "closed_call"]
)


@dataclasses.dataclass
class Totals:
    """Totals of one module or of one kind of op.

    Attributes:
      name: the module's path, or the op's name.
      ops: how many ops ran.
      forward_flops, backward_flops: floating point operations before and of the backward pass.
      transcendentals: exponentials and their kin.
      bytes_read, bytes_written: were each op a kernel of its own.
      activation_bytes: bytes of values made here in the forward pass that the backward pass reads.
    """

    name: str
    ops: int = 0
    forward_flops: float = 0.0
    backward_flops: float = 0.0
    transcendentals: float = 0.0
    bytes_read: float = 0.0
    bytes_written: float = 0.0
    activation_bytes: float = 0.0

    @property
    def flops(self) -> float:
        """Forward and backward together."""
        return self.forward_flops + self.backward_flops

    def add(self, other: Totals) -> None:
        """Adds another row's figures to this one."""
        for field in dataclasses.fields(self)[1:]:
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@dataclasses.dataclass(frozen=True)
class OpRecord:
    """One op of the program, all its runs together."""

    name: str
    module: str
    source: str
    backward: bool
    runs: int
    cost: costs.Cost
    result: str


@dataclasses.dataclass(frozen=True)
class Profile:
    """The profile of one program.

    Attributes:
      total: of the whole program.
      modules: module path to its own totals, without those of modules inside it.
      kinds: op name to totals.
    """

    total: Totals
    modules: dict[str, Totals]
    kinds: dict[str, Totals]
    _entries: list[tuple[Op, str, bool, int, costs.Cost]] = dataclasses.field(repr=False)

    @property
    def flops(self) -> float:
        """Floating point operations in all."""
        return self.total.flops

    @property
    def activation_bytes(self) -> float:
        """Bytes kept from the forward pass for the backward pass."""
        return self.total.activation_bytes

    def ops(self) -> Iterator[OpRecord]:
        """Every op in program order, those of loops with the number of their runs."""
        for op, module, backward, runs, cost in self._entries:
            result = ", ".join(v.type_text() for v in op.outputs)
            yield OpRecord(op.name, module, op.source, backward, runs, cost.times(runs), result)

    def inclusive(self) -> dict[str, Totals]:
        """Module path to the totals of it and of all modules inside it; "" is the whole."""
        rows: dict[str, Totals] = {}
        for path, row in self.modules.items():
            parts = path.split("/") if path else []
            for depth in range(len(parts) + 1):
                outer = "/".join(parts[:depth])
                rows.setdefault(outer, Totals(outer)).add(row)
        return dict(sorted(rows.items()))

    def to_json(self) -> dict[str, Any]:
        """Totals, modules (inclusive) and kinds of op."""
        return {
            "total": dataclasses.asdict(self.total),
            "modules": {k: dataclasses.asdict(v) for k, v in self.inclusive().items()},
            "kinds": {k: dataclasses.asdict(v) for k, v in self.kinds.items()},
        }

    def table(self, by: str = "module", limit: int = 30) -> str:
        """A table by "module" (inclusive) or by "op", costliest first."""
        rows = self.inclusive() if by == "module" else self.kinds
        chosen = sorted(rows.values(), key=lambda r: (-r.flops, -r.bytes_written))[:limit]
        return _table(by, [(row.name or "(all)", row) for row in chosen])

    def tree(self, depth: int = 4) -> str:
        """The modules as a tree."""
        lines = []
        for path, row in self.inclusive().items():
            level = path.count("/") + 1 if path else 0
            if level <= depth:
                name = "  " * level + (path.rsplit("/", 1)[-1] or "(all)")
                lines.append((name, row))
        return _table("module", lines)

    def __str__(self) -> str:
        return self.tree()


def profile(fn: Callable[..., Any] | Program, *shapes: Any) -> Profile:
    """Profiles a jax function from shapes alone, or a program that is traced already.

    Args:
      fn: a function of positional pytrees of arrays, or a `Program` (a local one: per device).
      *shapes: pytrees of arrays or `jax.ShapeDtypeStruct`.
    """
    program = fn if isinstance(fn, Program) else trace(fn, *shapes)
    entries: list[tuple[Op, str, bool, int, costs.Cost]] = []
    kept: collections.Counter[str] = collections.Counter()
    _Walk(entries, kept).program(program, 1)
    modules: dict[str, Totals] = {}
    kinds: dict[str, Totals] = {}
    total = Totals("")
    for op, module, backward, runs, cost in entries:
        row = Totals(
            "",
            runs,
            0.0 if backward else cost.flops * runs,
            cost.flops * runs if backward else 0.0,
            cost.transcendentals * runs,
            cost.bytes_read * runs,
            cost.bytes_written * runs,
        )
        modules.setdefault(module, Totals(module)).add(row)
        kinds.setdefault(op.name, Totals(op.name)).add(row)
        total.add(row)
    for module, nbytes in kept.items():
        modules.setdefault(module, Totals(module)).activation_bytes += nbytes
        total.activation_bytes += nbytes
    return Profile(total, modules, kinds, entries)


class _Walk:
    """Collects ops with their modules, and the values that pass from forward to backward."""

    def __init__(self, entries: list[Any], kept: collections.Counter[str]):
        self.entries = entries
        self.kept = kept
        self.scopes: dict[Any, tuple[str, bool]] = {}

    def program(self, program: Program, runs: int) -> dict[Value, Op]:
        """Walks one program; returns which op makes each value."""
        made: dict[Value, Op] = {}
        counted: set[Value] = set()
        for op in program.ops:
            module, backward = self.scope(op)
            if backward:
                for value in op.inputs:
                    source = made.get(value)
                    if source is not None and value not in counted and not self.scope(source)[1]:
                        counted.add(value)
                        self.keep(value, source, runs)
            for value in op.outputs:
                made[value] = op
            if op.regions:
                for region in op.regions:
                    self.program(region, runs * op.trips)
            else:
                self.entries.append((op, module, backward, runs, costs.op_cost(op)))
        return made

    def keep(self, value: Value, source: Op, runs: int) -> None:
        """Counts a value that the backward pass reads, in the module that made it."""
        module = self.scope(source)[0]
        if source.name == "scan":
            region = source.regions[0]
            inner = region.outputs[source.outputs.index(value)]
            for op in region.ops:
                if inner in op.outputs:
                    module = self.scope(op)[0]
        elif traits_of(source.name).view == "always" or (
            traits_of(source.name).source and not source.inputs
        ):
            return
        self.kept[module] += value.nbytes * runs

    def scope(self, op: Op) -> tuple[str, bool]:
        """(module path, True if the op belongs to the backward pass)."""
        info = op.source_info
        key = (op.prefix, info.name_stack if info is not None else None)
        known = self.scopes.get(key)
        if known is None:
            text = op.scope
            known = self.scopes[key] = module_of(text), "transpose(" in text
        return known


def module_of(scope: str) -> str:
    """The module path in a name stack: "transpose(jvp(mlp))/linear" is "mlp/linear"."""
    text = _CALL.sub("", scope)
    text = _WRAPPER.sub("", text)
    if "(" not in text:
        text = text.replace(")", "")
    parts = [part.strip("()") for part in text.split("/")]
    return "/".join(p for p in parts if p not in _NOISE and "->" not in p)


def _si(value: float) -> str:
    for limit, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.2f} {unit}"
    return f"{value:.0f} "


def _table(title: str, rows: list[tuple[str, Totals]]) -> str:
    heads = [title, "FLOPs forward", "backward", "read", "written", "kept"]
    body = [
        [
            name,
            _si(row.forward_flops),
            _si(row.backward_flops),
            _si(row.bytes_read) + "B",
            _si(row.bytes_written) + "B",
            _si(row.activation_bytes) + "B",
        ]
        for name, row in rows
    ]
    widths = [max(len(line[i]) for line in [heads, *body]) for i in range(len(heads))]
    lines = []
    for line in [heads, *body]:
        cells = [
            line[0].ljust(widths[0]),
            *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
