"""Plans in words: tables, and why an array is sharded as it is. Plans are made above."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .decide.actions import label
from .decide.blockers import Blocker, tiled_from
from .decide.graph import Graph
from .decide.node import Node
from .decide.propagate import Conflict
from .decide.repropagate import Repropagation
from .decide.sharding import REPLICATED_DIM, Decisions
from .ir.program import Value
from .tactics.manual import path_pattern, tags


def table(rows: Sequence[Mapping[str, str]], left: Sequence[str] = ()) -> str:
    """Rows of title to text, under their titles; the columns in `left` start on the left."""
    titles = list(dict.fromkeys(title for row in rows for title in row))
    columns = [[title, *(row.get(title, "") for row in rows)] for title in titles]
    for title, column in zip(titles, columns, strict=True):
        width = max(map(len, column))
        column[:] = [c.ljust(width) if title in left else c.rjust(width) for c in column]
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def explain(
    path: str,
    graph: Graph,
    state: Decisions,
    tactics: Sequence[str],
    conflicts: Sequence[Conflict],
    blockers: Sequence[Blocker] = (),
    repropagated: Sequence[Repropagation] = (),
    moves: Sequence[tuple[int, int, str]] = (),
) -> str:
    """Explains why the arrays at a path (or glob) are sharded as they are, tactic by tactic.

    Args:
      path: of an input, an output or a tag; or a glob.
      graph: the traced program with its rules.
      state: every decision.
      tactics: the schedule's names.
      conflicts: the conflicts of every tactic.
      blockers: the ops at which tilings of every tactic end.
      repropagated: the places where tilings were taken up again.
      moves: the decisions (from, to) of each move of a searching tactic, and the time it saves.

    Raises:
      ValueError: where the path matches no input, output or tag.
    """
    program = graph.program
    named = [(v.path, v) for v in (*program.inputs, *program.outputs) if v.path]
    named += tags(program)
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
    lines: list[str] = []
    for value, text in found.items():
        reasons = _reasons(
            value, state, tactics, {(r.value, r.axis): r for r in repropagated}, moves
        )
        reasons += [f"conflict: {c}" for c in conflicts if value in c.node.values]
        reasons += _ends(value, graph, state, blockers)
        dims = ", ".join("*".join(axes) or "-" for axes in state.layout(value))
        lines.append(f"{text} {value.type_text()}: ({dims})")
        lines += [f"  {r}" for r in reasons or ["no tactic reached it: replicated on every axis"]]
    return "\n".join(lines)


_Moves = Mapping[tuple[Value, str], Repropagation]


def _reasons(
    value: Value,
    state: Decisions,
    tactics: Sequence[str],
    repropagated: _Moves,
    moves: Sequence[tuple[int, int, str]],
) -> list[str]:
    """Lines for the decisions on an array, tactic by tactic, with the ops between."""
    lines: list[str] = []
    for index, decision in enumerate(state.journal):
        if decision.value is not value:
            continue
        what = "replicated" if decision.what == REPLICATED_DIM else f"dimension {decision.what}"
        which = next((f": {text}" for start, end, text in moves if start <= index < end), "")
        lines.append(f"{decision.axis}: {what}, by {tactics[decision.tactic]!r}{which}")
        lines += [f"  {text}" for text in _chain(state, value, decision.axis, repropagated)]
    return lines


def _ends(value: Value, graph: Graph, state: Decisions, blockers: Sequence[Blocker]) -> list[str]:
    """Lines for the ends of the tilings that go on from an array."""
    lines: list[str] = []
    for axis, dim in state.tiles.get(value, {}).items():
        if dim == REPLICATED_DIM:
            continue
        reached = tiled_from(graph, state, axis, value)
        ended = [e for e in blockers if e.axis == axis and not e.values.isdisjoint(reached)]
        lines += [str(e) for e in ended[:4]]
        if len(ended) > 4:
            lines.append(f"{axis}: and {len(ended) - 4} more blockers")
    return lines


def _chain(state: Decisions, value: Value, axis: str, repropagated: _Moves) -> list[str]:
    """Op by op back to the array that a tactic named."""
    when = {
        (d.value, d.axis): (index, d)
        for index, d in enumerate(state.journal)
        if d.value is not None
    }
    lines: list[str] = []
    for _ in range(8):
        index, decision = when[value, axis]
        node = decision.node
        if (value, axis) in repropagated:
            return [*lines, str(repropagated[value, axis])]
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
