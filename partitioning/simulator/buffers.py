"""Assigns buffers to a schedule of kernels: shared buffers, their lifetimes, the size of the heap.

The steps of XLA's buffer assignment: values that must share a buffer are grouped (loop carries,
in-place updates, donated arguments), copies are made where a value would be overwritten while it
may still be read, temporaries move into buffers of results and donated arguments that are not in
use yet, and what is left is packed, largest first, into the best-fitting hole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from .fusion import Kernel, fuse, in_parallel, order, post_order
from .graph import BRANCH, CONSTANT, ELEMENT, LOOP, NEWER, OPAQUE, PARAM, ArrayGraph, ArrayNode
from .heap import Buffer, Window, pack, reuse

# cuBLAS gets so many bytes on an H100; smaller products XLA computes by kernels of its own.
_WORKSPACE = 32 << 20
_LIBRARY_FLOPS = 1e9


@dataclasses.dataclass
class Assignment:
    """The buffers of one computation.

    Attributes:
      schedule: kernels in the order in which they run.
      temporaries: buffers in the heap.
      temporary_bytes: size of the heap.
      lodged: temporaries in donated arguments and in results, each with where.
      inner: for kernels that run loops or branches, the assignment of the largest body.
      copied: bytes of the copies that were needed.
    """

    schedule: list[Kernel]
    temporaries: list[Buffer]
    temporary_bytes: int
    lodged: list[tuple[Buffer, Window]]
    inner: dict[Kernel, list[Assignment]]
    copied: int = 0

    @property
    def chooses(self) -> bool:
        """True if a branch depends on a value, here or in a loop."""
        return any(
            kernel.root.kind == BRANCH or any(body.chooses for body in bodies)
            for kernel, bodies in self.inner.items()
        )


def assign(
    graph: ArrayGraph,
    donated: Mapping[int, int] | None = None,
    body: bool = False,
    kind: str = "cpu",
) -> Assignment:
    """Schedules a graph and assigns its buffers.

    Args:
      graph: the graph that `build` made.
      donated: index of a parameter to the index of the result that takes its buffer.
      body: True if the graph is the body of a loop or a branch; its parameters and results then
        live outside.
      kind: the device's kind, which decides the order of the schedule.
    """
    return _Assigner(graph, dict(donated or {}), body, kind).run()


def scheduled(graph: ArrayGraph, kind: str = "cpu") -> Assignment:
    """Schedules a graph without buffers: its time depends on nothing else.

    Args:
      graph: the graph that `build` made.
      kind: the device's kind, which decides the order of the schedule.
    """
    schedule = _schedule(graph, kind)
    loops = [kernel for kernel in schedule if kernel.root.kind in (LOOP, BRANCH)]
    inner = {kernel: [scheduled(g, kind) for g in kernel.root.body] for kernel in loops}
    return Assignment(schedule, [], 0, [], inner)


def _schedule(graph: ArrayGraph, kind: str) -> list[Kernel]:
    walk = post_order(graph) if kind == "cpu" else None
    return order(fuse(graph, walk), walk)


class _Assigner:
    def __init__(self, graph: ArrayGraph, donated: dict[int, int], body: bool, kind: str):
        self.graph = graph
        self.body = body
        self.kind = kind
        self.schedule = _schedule(graph, kind)
        self.kernel = {k.root: k for k in self.schedule}
        self.readers: dict[ArrayNode, list[Kernel]] = {}
        for kernel in self.schedule:
            for node in kernel.inputs:
                self.readers.setdefault(node, []).append(kernel)
        self.end = len(self.schedule)
        self.group: dict[ArrayNode, ArrayNode] = {}
        self.early: dict[ArrayNode, int] = {}
        self.copied = 0
        self.inner: dict[Kernel, list[Assignment]] = {}
        self.extra: list[Buffer] = []
        # (parameter, result) pairs that share one buffer; a branch carries nothing.
        if body:
            carried = zip(graph.carried, graph.outputs[: len(graph.carried)], strict=True)
            self.pairs = [(p, o) for p, o in carried if p is not o]
        else:
            self.pairs = [(graph.params[i], graph.outputs[o]) for i, o in donated.items()]

    def add_workspace(self, kernel: Kernel) -> None:
        """Gives a large product the memory that its library asks for while it runs."""
        if kernel.root.flops >= _LIBRARY_FLOPS:
            space = ArrayNode(-1, OPAQUE, "workspace", _WORKSPACE, (_WORKSPACE,))
            at = kernel.position
            self.extra.append(Buffer(_WORKSPACE, [(at, at)], space))

    # -- sharing ----------------------------------------------------------------------------------

    def find(self, node: ArrayNode) -> ArrayNode:
        """The node that stands for everything that shares a buffer with this one."""
        root = node
        while root in self.group:
            root = self.group[root]
        while node is not root:
            self.group[node], node = root, self.group[node]
        return root

    def last_read(self, node: ArrayNode) -> int:
        readers = self.readers.get(node)
        return max(k.position for k in readers) if readers else self.kernel[node].position

    def run(self) -> Assignment:
        for kernel in self.schedule:
            if kernel.root.kind in (LOOP, BRANCH):
                self.inner[kernel] = [
                    assign(g, body=True, kind=self.kind) for g in kernel.root.body
                ]
            elif self.kind == "gpu" and kernel.root.name == "dot":
                self.add_workspace(kernel)
        self.share_in_place()
        self.share_loops()
        free_params = self.share_donated()
        results = {self.find(n) for n in self.graph.outputs}
        taken_over = {self.find(result) for _, result in self.pairs}
        groups: dict[ArrayNode, list[ArrayNode]] = {}
        for kernel in self.schedule:
            root = kernel.root
            if (
                root.kind not in (LOOP, BRANCH)
                and root.nbytes
                and not (root.kind == OPAQUE and not root.nbytes)
            ):
                groups.setdefault(self.find(root), []).append(root)
        temporaries: list[Buffer] = list(self.extra)
        windows = list(free_params)
        for root, nodes in groups.items():
            if root is _NOWHERE or any(n.kind in (PARAM, CONSTANT) for n in nodes):
                continue
            spans = sorted(self.span(n) for n in nodes)
            size = max(n.nbytes for n in nodes)
            if root in results:
                if not self.body and root not in taken_over:
                    windows.append(Window(size, 0, spans[0][0], nodes[0]))
                continue
            temporaries.append(Buffer(size, _merge(spans), nodes[0]))
        for kernel, bodies in self.inner.items():
            size = max((b.temporary_bytes for b in bodies), default=0)
            if size:
                at = kernel.position
                temporaries.append(Buffer(size, [(at, at)], kernel.root))
        temporaries = self.share_dying(temporaries)
        temporaries, lodged = reuse(temporaries, windows)
        heap = pack(temporaries)
        return Assignment(self.schedule, temporaries, heap, lodged, self.inner, self.copied)

    def span(self, node: ArrayNode) -> tuple[int, int]:
        kernel = self.kernel[node]
        start = kernel.position
        if node.kind == ELEMENT:
            start = self.kernel[node.operands[0]].position
        return min(start, self.early.get(node, start)), max(start, self.last_read(node))

    def share_in_place(self) -> None:
        """Updates and scatters write into their operand's buffer when nobody needs it
        afterwards.
        """
        for kernel in self.schedule:
            node = kernel.root
            if node.in_place < 0:
                continue
            group = node.operands[0] if node.kind == ELEMENT else node
            target = group.operands[node.in_place]
            if group.name == "barrier":
                self.join(target, node)
                continue
            if target not in self.readers or target.nbytes != node.nbytes:
                continue
            alone = all(k.position <= kernel.position for k in self.readers[target])
            free = target.kind not in (PARAM, CONSTANT) or self.body
            if alone and free and target not in self.graph.outputs:
                self.join(target, node)
            elif (target, node) not in self.pairs:
                # It works on a copy, which is made as soon as its operand is there.
                self.early[node] = self.kernel[target].position

    def join(self, first: ArrayNode, second: ArrayNode) -> None:
        a, b = self.find(first), self.find(second)
        if a is not b:
            self.group[b] = a

    def share_loops(self) -> None:
        """A loop's carries live in one buffer from before the loop until the last use of the
        result.
        """
        taken: set[ArrayNode] = set()
        for kernel in self.schedule:
            loop = kernel.root
            if loop.kind != LOOP:
                continue
            body = loop.body[0]
            elements = {n.data: n for n in loop.users if n.kind == ELEMENT}
            for i, (source, param, result) in enumerate(
                zip(loop.data, body.carried, body.outputs, strict=True)
            ):
                element = elements.get(i)
                if param is result:
                    if element is not None:
                        self.join(source, element)
                    continue
                fixed = (
                    source.kind in (PARAM, CONSTANT)
                    or source in taken
                    or source in self.graph.outputs
                )
                later = any(k.position > kernel.position for k in self.readers.get(source, ()))
                if fixed or later:
                    # The loop works on a copy, which runs as soon as its source is there.
                    self.copied += source.nbytes
                    start = self.kernel[source].position
                    stop = self.last_read(element) if element is not None else kernel.position
                    if element is not None and self.is_result(element):
                        continue  # the copy is made in the result's own buffer
                    span = (start, max(stop, kernel.position))
                    if element is not None:
                        self.carry_span(element, span)
                    else:
                        self.extra.append(Buffer(source.nbytes, [span], source))
                    continue
                taken.add(source)
                if element is not None:
                    self.join(source, element)

    def carry_span(self, element: ArrayNode, span: tuple[int, int]) -> None:
        """Makes the element's buffer live from the copy on."""
        ghost = Buffer(element.nbytes, [span], element)
        self.extra.append(ghost)
        self.group[element] = _NOWHERE

    def is_result(self, node: ArrayNode) -> bool:
        return node in self.graph.outputs

    def share_donated(self) -> list[Window]:
        """Results written into donated arguments (or loop carries); returns windows left for
        others.
        """
        if not self.pairs:
            return []
        watched = {p for p, _ in self.pairs}
        marks: dict[Kernel, int] = {}
        for node in watched:
            for kernel in self.readers.get(node, ()):
                marks.setdefault(kernel, 1 << len(marks))
        before: list[int] = [0] * len(self.schedule)
        for kernel in self.schedule:
            seen = marks.get(kernel, 0)
            inputs = kernel.root.operands if kernel.root.kind == ELEMENT else kernel.inputs
            for node in inputs:
                seen |= before[self.kernel[node].position]
            before[kernel.position] = seen
        windows = []
        for param, result in self.pairs:
            writer = self.kernel[result]
            if result.kind in (PARAM, CONSTANT):
                continue
            if result.kind == ELEMENT:
                writer = self.kernel[result.operands[0]]
            seen = before[writer.position]
            safe = True
            for reader in self.readers.get(param, ()):
                if reader is writer:
                    safe = safe and (
                        param.index in writer.shared
                        or writer.root.in_place >= 0
                        or writer.root.kind == LOOP
                        or param.nbytes != writer.nbytes
                    )
                else:
                    safe = safe and bool(seen & marks[reader])
            last = self.last_read(param)
            start = self.buffer_start(result)
            if not safe:
                self.copied += param.nbytes
                self.extra.append(
                    Buffer(param.nbytes, [(self.kernel[param].position, last)], param)
                )
                last = self.kernel[param].position
            if not self.body:
                windows.append(Window(param.nbytes, last + 1, start, param))
        return windows

    def buffer_start(self, node: ArrayNode) -> int:
        root = self.find(node)
        return min(
            (self.kernel[n].position for n in (node, root) if n in self.kernel),
            default=self.kernel[node].position,
        )

    def share_dying(self, temporaries: list[Buffer]) -> list[Buffer]:
        """An elementwise kernel writes over an operand of the same size that dies with it."""
        holder = {b.owner: b for b in temporaries}
        merged: set[int] = set()
        for kernel in self.schedule:
            if self.kind == "cpu" and not NEWER and in_parallel(kernel):
                continue
            node = kernel.root
            if any(node in user.reshaped for user in node.users):
                continue  # the kernel ends in a view, and works on one place after another no more
            mine = holder.get(self.find(node)) or holder.get(node)
            if mine is None or id(mine) in merged or mine.start != kernel.position:
                continue
            for source in kernel.inputs:
                if source.index not in kernel.shared or source.nbytes != node.nbytes:
                    continue
                theirs = holder.get(self.find(source)) or holder.get(source)
                if (
                    theirs is None
                    or theirs is mine
                    or theirs.end != kernel.position
                    or theirs.nbytes != mine.nbytes
                ):
                    continue
                theirs.spans = _merge(sorted([*theirs.spans, *mine.spans]))
                merged.add(id(mine))
                for key, value in [(node, theirs), (self.find(node), theirs)]:
                    holder[key] = value
                break
        return [b for b in temporaries if id(b) not in merged]


_NOWHERE = ArrayNode(-1, PARAM, "elsewhere", 0, ())


def _merge(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Joins the spans of a buffer that keeps its content between them into one."""
    return [(min(s for s, _ in spans), max(e for _, e in spans))]
