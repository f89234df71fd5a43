"""The memory that a program needs on one device, and the values that need it."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ..ir.program import Op, Program, Value
from .buffers import Assignment, assign
from .graph import CONSTANT, ELEMENT, LOOP, PARAM, ArrayGraph, ArrayNode, build
from .graph.nodes import uniform
from .profile import module_of


@dataclasses.dataclass(frozen=True)
class Owner:
    """A value alive at the peak, or several that are alike.

    Attributes:
      name: the op that made it, or the path of an argument.
      nbytes: its size; of several, that of all.
      source: "file.py:12", or "" where jax does not know.
      kind: "argument", "output" or "temporary".
      type: its dtype and shape, "f32[8,64]"; the shape alone where the compiler made it.
      count: how many there are of this name, source, kind and type.
    """

    name: str
    nbytes: int
    source: str
    kind: str
    type: str
    count: int = 1

    @property
    def types(self) -> str:
        """The type, and how often, as in "48 x f32[8,64]"."""
        return f"{self.count} x {self.type}" if self.count > 1 else self.type


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device while the program runs.

    Attributes:
      arguments: bytes of the arguments that are read, and of the arrays that the step closes over.
      outputs: bytes of the results and of the table that points to them.
      temporaries: size of the heap of everything that is neither argument nor result.
      aliased: bytes of results that live in donated arguments.
      copies: bytes of the temporaries that exist only because a value had to be copied.
      owners: the values alive at the peak, largest first.
      profile: bytes in use while each kernel runs, in the order of the schedule.
    """

    arguments: int
    outputs: int
    temporaries: int
    aliased: int
    copies: int
    owners: tuple[Owner, ...]
    profile: tuple[int, ...]

    @property
    def peak(self) -> int:
        """Bytes of arguments, results and temporaries; aliased ones count once."""
        return self.arguments + self.outputs + self.temporaries - self.aliased

    def to_json(self) -> dict[str, Any]:
        """The figures by name, and the owners of the peak."""
        return {
            "arguments": self.arguments,
            "outputs": self.outputs,
            "temporaries": self.temporaries,
            "aliased": self.aliased,
            "peak": self.peak,
            "owners": [dataclasses.asdict(o) for o in self.owners],
        }


def donation_pairs(program: Program, donated: Collection[str]) -> dict[int, int]:
    """Pairs outputs with the donated inputs that they take the buffers of, as jax does.

    Each output takes the first free input of equal shape and dtype.

    Args:
      program: with paths on its inputs ("state/params/w").
      donated: argument names ("state"), or paths that begin with one.

    Returns:
      Index of an input to index of an output.
    """
    free: dict[Any, collections.deque[int]] = collections.defaultdict(collections.deque)
    for i, value in enumerate(program.inputs):
        if value.path.split("/", 1)[0] in donated:
            free[value.shape, value.dtype].append(i)
    pairs: dict[int, int] = {}
    if not free:
        return pairs
    for o, value in enumerate(program.outputs):
        queue = free.get((value.shape, value.dtype))
        if queue:
            pairs[queue.popleft()] = o
    return pairs


def memory_of(
    program: Program,
    donated: Collection[str] = (),
    kind: str = "cpu",
    graph: ArrayGraph | None = None,
    assignment: Assignment | None = None,
    owners: int = 12,
) -> Memory:
    """The memory one run of a program takes.

    Args:
      program: global, or local (then: per device).
      donated: names of donated arguments.
      kind: kind of the device.
      graph, assignment: of this program, when they are at hand already.
      owners: how many values alive at the peak to name.
    """
    pairs = donation_pairs(program, donated)
    graph = graph or build(program, kind)
    assignment = assignment or assign(graph, pairs, kind=kind)
    used = [bool(node.users) or node in graph.outputs for node in graph.params]
    closed = captured(program)
    arguments = sum(v.nbytes for v in [*_read(program, used), *closed])
    outputs = sum(v.nbytes for v in program.outputs)
    table = 8 * len(program.outputs)  # the tuple of pointers to the results
    aliased = sum(program.inputs[i].nbytes for i in pairs if used[i])
    profile, at = _profile(assignment)
    held = [
        _array(v.path or n.name, v, "argument")
        for v, n, u in zip(program.inputs, graph.params, used, strict=True)
        if u
    ]
    held += [_array("closed over", v, "argument") for v in closed]
    taken = {graph.outputs[o] for o in pairs.values()}
    held += [
        _owner(n, "output") for n in dict.fromkeys(graph.outputs) if n not in taken and n.nbytes
    ]
    copied = dict(zip(graph.params, program.inputs, strict=True))
    for node, size in _alive(assignment, at):
        if (value := copied.get(node)) is not None:
            held.append(_array(f"copy of {value.path}", value, "temporary"))
        else:
            held.append(_owner(node, "temporary", size))
    base = arguments + outputs + table - aliased
    return Memory(
        arguments,
        outputs + table,
        assignment.temporary_bytes,
        aliased,
        assignment.copied,
        _together(held)[:owners],
        tuple(
            int(base + p)
            for kernel, p in zip(
                assignment.schedule, profile[: len(assignment.schedule)], strict=True
            )
            if kernel.root.kind not in (PARAM, CONSTANT)
        ),
    )


def held_throughout(program: Program, used: Sequence[bool]) -> list[Value]:
    """The inputs that are read, and the arrays that the step closes over; each is in memory."""
    return [*_read(program, used), *captured(program)]


def _read(program: Program, used: Sequence[bool]) -> list[Value]:
    """The inputs that are read."""
    return [v for v, u in zip(program.inputs, used, strict=True) if u]


def captured(program: Program) -> list[Value]:
    """The arrays that a program and its regions close over, each once; no device has a part."""
    programs = [program, *(region for op in program.walk() for region in op.regions)]
    return [*{id(v.data): v for one in programs for v in one.constants}.values()]


def _profile(assignment: Assignment) -> tuple[np.ndarray, int]:
    """Bytes of temporaries at each position, and the position with the most."""
    change = np.zeros(len(assignment.schedule) + 2, np.int64)
    for buffer in assignment.temporaries:
        for first, last in buffer.spans:
            change[first] += buffer.nbytes
            change[min(last, len(assignment.schedule)) + 1] -= buffer.nbytes
    profile = np.cumsum(change)[: max(len(assignment.schedule), 1)]
    return profile, int(np.argmax(profile))


def _alive(assignment: Assignment, at: int) -> list[tuple[ArrayNode, int]]:
    """The nodes that temporaries at a position hold, with bytes; of a loop those inside."""
    found: list[tuple[ArrayNode, int]] = []
    inside = {kernel.root: bodies for kernel, bodies in assignment.inner.items()}
    for buffer in assignment.temporaries:
        if any(first <= at <= last for first, last in buffer.spans):
            bodies = inside.get(buffer.owner)
            if bodies:
                largest = max(bodies, key=lambda body: body.temporary_bytes)
                found += _alive(largest, _profile(largest)[1])
                continue
            found.append((buffer.owner, buffer.nbytes))
    return found


def _together(held: Sequence[Owner]) -> tuple[Owner, ...]:
    """Those that differ in nothing, as weights that every layer gathers, as one; largest first."""
    counts = collections.Counter(held)
    found = [dataclasses.replace(o, nbytes=n * o.nbytes, count=n) for o, n in counts.items()]
    return tuple(sorted(found, key=lambda one: -one.nbytes))


def _array(name: str, value: Value, kind: str) -> Owner:
    return Owner(name, value.nbytes, "", kind, value.type_text())


def _owner(node: ArrayNode, kind: str, nbytes: int | None = None) -> Owner:
    value, op = _made_by(node)
    name, source = node.name if op is node.op else op.name if op is not None else "", ""
    if op is not None:
        module, source = module_of(op.scope), op.source
        name = f"{module}/{name}" if module else name
        name += " (backward)" if op.backward else ""
    known = value is not None and value.nbytes == node.nbytes
    text = value.type_text() if value is not None and known else str(list(node.shape))
    return Owner(name, node.nbytes if nbytes is None else nbytes, source, kind, text)


def _made_by(node: ArrayNode) -> tuple[Value | None, Op | None]:
    """The value that a node holds and the op that makes it: of a loop the one in its body."""
    op, at = node.op, node.data if node.kind == ELEMENT and isinstance(node.data, int) else 0
    if uniform(node):  # What a loop fills is called by what it becomes there.
        for user in node.users:
            if user.kind == LOOP and node in user.data:
                op, at = user.op, user.data.index(node)
    if op is None or not op.outputs:
        return None, op
    value = op.outputs[min(at, len(op.outputs) - 1)]
    while op.regions and len(op.regions[-1].outputs) == len(op.outputs) > at:
        body = op.regions[-1]
        inner = _next_turn(op, body.outputs[at])
        maker = next((one for one in body.ops if inner in one.outputs), None)
        if maker is None:
            break
        op, at = maker, maker.outputs.index(inner)
    return value, op


def _next_turn(op: Op, value: Value) -> Value:
    """Of a carry that a loop's body is given, what it becomes there; else the value itself."""
    body, consts = op.regions[-1], op.params.get("num_consts", 0)
    carries = body.inputs[consts : consts + op.params.get("num_carry", 0)]
    return body.outputs[carries.index(value)] if value in carries else value
