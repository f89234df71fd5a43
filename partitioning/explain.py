"""Plans in words: the table, and why an array is sharded as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .decide.actions import label
from .decide.graph import Node
from .decide.sharding import ATOMIC
from .ir.program import COLLECTIVES, Value
from .tactics.manual import path_pattern

if TYPE_CHECKING:
    from .plan import Plan


def plan_table(plan: Plan) -> str:
    """One row per tactic: collectives, bytes sent per device, conflicts, and predictions where
    there are any.
    """
    rows = [["tactic", "axis", *COLLECTIVES, "sent", "conflicts"]]
    for step in plan.steps:
        counts = [str(step.collectives[name]) for name in COLLECTIVES]
        sent = readable(sum(step.bytes_moved.values()))
        rows.append([step.name, step.axis, *counts, sent, str(len(step.conflicts))])
    extra = [step.cost.columns() if hasattr(step.cost, "columns") else {} for step in plan.steps]
    for title in dict.fromkeys(key for columns in extra for key in columns):
        rows[0].append(title)
        for row, columns in zip(rows[1:], extra, strict=True):
            row.append(str(columns.get(title, "")))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [f"mesh {plan.mesh}, {len(plan.graph.program.inputs)} inputs"]
    for row in rows:
        cells = [
            c.ljust(w) if i < 2 else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    for step in plan.steps:
        shown = [f"conflict: {c}" for c in step.conflicts] + list(step.notes)
        lines += [f"  {step.name}: {text}" for text in shown[:6]]
        if len(shown) > 6:
            lines.append(f"  {step.name}: and {len(shown) - 6} more")
    return "\n".join(lines)


def readable(count: float) -> str:
    """Bytes as text: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def explain(plan: Plan, path: str) -> str:
    """See :meth:`Plan.explain`.

    Raises:
      ValueError: where the path matches no input, output or tag.
    """
    program = plan.graph.program
    named = [(v.path, v) for v in (*program.inputs, *program.outputs) if v.path]
    named += [(op.params["name"], op.outputs[0]) for op in program.walk() if op.name == "name"]
    pattern = path_pattern(path)
    found: dict[Value, str] = {}
    for text, value in named:
        if text == path or text.startswith(path + "/") or pattern.fullmatch(text):
            found.setdefault(value, text)
    if not found:
        some = ", ".join(dict.fromkeys(text for text, _ in named[:5]))
        raise ValueError(
            f"{path!r} matches no input, output or tag of the plan; there are e.g. {some}"
        )
    return "\n".join(line for value, text in found.items() for line in _lines(plan, text, value))


def _lines(plan: Plan, path: str, value: Value) -> list[str]:
    layout = plan.state.layout(value)
    dims = ", ".join("*".join(axes) or "-" for axes in layout)
    lines = [f"{path} {value.type_text()}: ({dims})"]
    for decision in plan.state.journal:
        if decision.value is not value:
            continue
        what = "kept whole" if decision.what == ATOMIC else f"dimension {decision.what}"
        tactic = plan.steps[decision.tactic].name
        lines.append(f"  {decision.axis}: {what}, by {tactic!r}")
        lines += [f"    {text}" for text in _chain(plan, value, decision.axis)]
    for conflict in plan.conflicts:
        if value in conflict.node.values:
            lines.append(f"  conflict: {conflict}")
    if len(lines) == 1:
        lines.append("  no tactic reached it: whole on every axis")
    return lines


def _chain(plan: Plan, value: Value, axis: str) -> list[str]:
    """Op by op back to the array that a tactic named."""
    when = {
        (d.value, d.axis): (index, d)
        for index, d in enumerate(plan.state.journal)
        if d.value is not None
    }
    lines: list[str] = []
    for _ in range(8):
        index, decision = when[value, axis]
        node = decision.node
        if node is None:
            lines.append(
                f"the tactic tiles {label(value)} itself" if lines else "the tactic says so itself"
            )
            return lines
        earlier = [
            v
            for v in node.values
            if (v, axis) in when and when[v, axis][0] < index and v is not value
        ]
        lines.append(f"through {_node_text(node)}")
        if not earlier:
            return lines
        value = min(earlier, key=lambda v: when[v, axis][0])
    lines.append("and so on")
    return lines


def _node_text(node: Node) -> str:
    if node.owner is None:
        return "the state that comes out again"
    where = f" at {node.owner.source}" if node.owner.source else ""
    return f"{node.owner.name}{where}"
