"""Decides which nodes become kernels, and which are computed inside another node's kernel.

The rules of XLA's instruction fusion: a fusible producer goes into its consumer; one with several
consumers is computed again in each of them, unless it is expensive or that would read more memory,
and then it goes nowhere unless it can go everywhere.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..rules import traits_of
from .graph import CONSTANT, ELEMENT, FUSIBLE, LOOP, NEWER, OPAQUE, PARAM, ArrayGraph, ArrayNode

# What a thread must have to do before a kernel is worth more than one.
_BYTES_PER_THREAD = 128 << 10
_WORK_PER_THREAD = 100_000

# How often the code of one node may be written out in a kernel.
_MOST_COPIES = 15


@dataclasses.dataclass(eq=False, repr=False, slots=True)
class Kernel:
    """One node that is written to memory, with the nodes that are computed on the way.

    Attributes:
      root: the node that the kernel writes.
      inputs: nodes in memory that it reads, in the order of discovery.
      members: fused nodes, the root included.
      shared: indices of inputs with buffers that the result may take over.
      emitted: for each fused node, those that compute the places at which it is needed, and how
        often its code is written out.
      position: place in the schedule, set by `order`.
    """

    root: ArrayNode
    inputs: dict[ArrayNode, None] = dataclasses.field(default_factory=dict)
    members: list[ArrayNode] = dataclasses.field(default_factory=list)
    shared: set[int] = dataclasses.field(default_factory=set)
    emitted: dict[Any, tuple[frozenset[Any], int]] = dataclasses.field(default_factory=dict)
    position: int = -1

    def __post_init__(self) -> None:
        self.members.append(self.root)
        self.emitted[self.root] = self.emitted[None] = frozenset([None]), 1

    @property
    def nbytes(self) -> int:
        return self.root.nbytes

    def __repr__(self) -> str:
        return f"Kernel({self.root!r} <- {[n.index for n in self.inputs]})"


def fuse(graph: ArrayGraph, walk: list[int] | None = None) -> list[Kernel]:
    """The kernels of a graph, in the order of its nodes. Parameters and constants get one as well.

    Args:
      graph: what `build` made.
      walk: of the graph (`post_order`), for the CPU's compiler, which does not count kernels. None:
        a node is computed again in several kernels only where that moves fewer bytes in all, as the
        compilers for accelerators weigh it, expensive ones too.
    """
    frugal = walk is None
    count = len(graph.nodes)
    # For each node: the kernels that compute it, and those of them that use its elements
    # repeatedly or in another position than the result's.
    hosts: list[tuple[Kernel, ...]] = [()] * count
    reusing: list[frozenset[Kernel]] = [frozenset()] * count
    moving: list[frozenset[Kernel]] = [frozenset()] * count
    kernels: list[Kernel] = []
    results = {n.index for n in graph.outputs}
    least = _least_reads(graph) if frugal else []
    for node in reversed(graph.nodes):
        index = node.index
        users = node.users
        inside: dict[Kernel, None] = {}
        reused: set[Kernel] = set()
        moved: set[Kernel] = set()
        stays = index in results or node.kind != FUSIBLE or not node.feeds or not users
        fused_everywhere = not stays
        # A view that another kernel reads is a place to compute it in as well.
        viewed = not stays
        if node.library is not None and node.library is not node:
            inside[hosts[node.library.index][0]] = None
            fused_everywhere = True
        elif node.kind == FUSIBLE and node.feeds:
            for user in users:
                if not user.fuses or node in user.whole:
                    fused_everywhere = False
                    viewed = viewed and node in user.reshaped
                    continue
                repeats = user.reuses or (
                    bool(reusing[user.index])
                    and not reusing[user.index].isdisjoint(hosts[user.index])
                )
                again = stays or len(users) > 1 or (not frugal and len(hosts[user.index]) > 1)
                if node.expensive and (repeats or (again and not (frugal and node.elementwise))):
                    fused_everywhere = False
                    continue
                for kernel in hosts[user.index]:
                    inside[kernel] = None
            if fused_everywhere and len(inside) > 1 and not node.unary and _linked(inside):
                fused_everywhere = False
            if walk is not None:
                inside = _emitting(node, inside, hosts, walk)
                fused_everywhere = fused_everywhere and len(inside) == len(
                    {k for user in users for k in hosts[user.index]}
                )
            times = len(inside)
            if frugal and fused_everywhere and times > 1 and not _pays(node, times, least):
                fused_everywhere = False
                inside = {}
            apart = not fused_everywhere and (frugal or not viewed)
            if apart and inside and (frugal or not _may_repeat(node)):
                inside = {}
        if not fused_everywhere:
            own = Kernel(node)
            kernels.append(own)
        for user in users:
            place = user.index
            elementwise = user.elementwise and node in user.direct
            for kernel in hosts[place]:
                if kernel in inside:
                    if user.reuses or kernel in reusing[place]:
                        reused.add(kernel)
                    if not elementwise or kernel in moving[place]:
                        moved.add(kernel)
        if fused_everywhere:
            hosts[index] = tuple(inside)
        else:
            hosts[index] = (own, *inside)
            for user in users:
                for kernel in hosts[user.index]:
                    # A copy of this node inside the kernel replaces the read.
                    if kernel not in inside or not user.fuses or node in user.whole:
                        kernel.inputs[node] = None
            share = set()
            for user in users:
                elementwise = user.elementwise and node in user.direct
                for kernel in hosts[user.index]:
                    if kernel not in inside:
                        if elementwise and kernel not in moving[user.index]:
                            share.add(kernel)
                        else:
                            moved.add(kernel)
            for kernel in share - moved:
                kernel.shared.add(index)
        for kernel in inside:
            kernel.members.append(node)
        if reused:
            reusing[index] = frozenset(reused)
        if moved:
            moving[index] = frozenset(moved)
    kernels.reverse()
    return kernels


def post_order(graph: ArrayGraph) -> list[int]:
    """The place of every node in an order in which each comes right behind what it reads last."""
    rank = [-1] * len(graph.nodes)
    count = 0
    for start in [*graph.outputs, *reversed(graph.nodes)]:
        stack = [(start, iter(start.operands))]
        while stack:
            node, operands = stack[-1]
            following = next((n for n in operands if rank[n.index] < 0), None)
            if following is not None:
                stack.append((following, iter(following.operands)))
                continue
            stack.pop()
            if rank[node.index] < 0:
                rank[node.index] = count
                count += 1
    return rank


def _emitting(
    node: ArrayNode,
    kernels: Iterable[Kernel],
    hosts: list[tuple[Kernel, ...]],
    walk: list[int],
) -> dict[Kernel, None]:
    """The kernels that compute the node, as far as the length of their code allows; notes how.

    The code of a node is written once for all that need it at the same places. Where shapes
    differ, places do, and it is written again. Later kernels decide first.
    """
    uses = collections.Counter(k for user in node.users for k in hosts[user.index])
    waiting = uses.total()
    found: dict[Kernel, None] = {}
    for kernel in sorted(kernels, key=lambda k: -walk[k.root.index]):
        needing: set[Any] = set()
        views: dict[Any, set[Any]] = {}
        for user in node.users:
            if user not in kernel.emitted:
                continue
            shape = user.reshaped.get(node)
            place = needing if shape is None else views.setdefault((node, shape), set())
            if user.permutes or user.shape == (node.shape if shape is None else shape):
                place |= kernel.emitted[user][0]
            else:
                place.add(user)
        for view, users in views.items():
            kernel.emitted[view] = frozenset(users), sum(kernel.emitted[u][1] for u in users)
            needing.add(view)
        times = sum(kernel.emitted[user][1] for user in needing)
        too_long = times > _MOST_COPIES or (node.branches and (times > 1 or waiting > 1))
        if too_long and len(kernel.members) > 1 and not traits_of(node.name).broadcasts:
            continue
        kernel.emitted[node] = frozenset(needing), times
        waiting -= uses[kernel]
        found[kernel] = None
    return found


def in_parallel(kernel: Kernel) -> bool:
    """True if an earlier CPU compiler has several threads run the kernel, as a function of its own.

    Such a function never writes over what it reads.
    """
    flops = sum(n.flops for n in kernel.members)
    nbytes = kernel.nbytes + sum(n.nbytes for n in kernel.inputs)
    if flops <= nbytes:
        return kernel.nbytes >= 2 * _BYTES_PER_THREAD
    work = flops + 2 * sum(n.transcendentals for n in kernel.members) + 10 * nbytes
    return work >= 2 * _WORK_PER_THREAD


def _may_repeat(node: ArrayNode) -> bool:
    """True if computing the node in several kernels reads no more memory than writing it once."""
    if node.expensive:
        return False
    return node.unary or sum(n.nbytes for n in node.operands) <= node.nbytes


def _pays(node: ArrayNode, times: int, least: list[int]) -> bool:
    """True if computing the node in so many kernels moves no more than writing it once and reading
    it there.
    """
    operands = sum(least[n.index] for n in node.operands)
    return times * operands <= operands + (1 + times) * node.nbytes


def _least_reads(graph: ArrayGraph) -> list[int]:
    """The fewest bytes that each node can be had from: its own, or those that it is computed of.

    A mask of the size of its argument, or a number that was bfloat16 before, is cheap to read.
    """
    found: list[int] = []
    for node in graph.nodes:
        nbytes = node.nbytes
        fusible = node.kind == FUSIBLE and node.feeds
        if fusible and (node.elementwise or traits_of(node.name).broadcasts):
            nbytes = min(nbytes, sum([found[n.index] for n in node.operands]))
        found.append(nbytes)
    return found


def _linked(kernels: dict[Kernel, None]) -> bool:
    """True if one of the kernels reads another's result."""
    roots = {kernel.root for kernel in kernels}
    return any(not roots.isdisjoint(kernel.inputs) for kernel in kernels)


def order(kernels: list[Kernel], walk: list[int] | None = None) -> list[Kernel]:
    """The schedule.

    Args:
      kernels: in program order.
      walk: of their graph (`post_order`): each kernel runs as soon as its inputs are there, as
        XLA's CPU compiler has it for the sake of concurrency, whatever that does to memory. None:
        the program's own order, with kernels that read nothing put right before their first
        reader; or first of all where there is a loop, as the compilers for GPUs were seen to do.
    """
    if walk is None:
        return _late_sources(kernels)
    place = {kernel.root: i for i, kernel in enumerate(kernels)}
    waiting = [0] * len(kernels)
    readers: list[list[int]] = [[] for _ in kernels]
    for i, kernel in enumerate(kernels):
        inputs = kernel.root.operands if kernel.root.kind == ELEMENT else kernel.inputs
        for node in inputs:
            source = place[node]
            readers[source].append(i)
        waiting[i] = len(inputs)
    if NEWER:
        for group in readers:
            group.sort(key=lambda i: _place_among_readers(kernels[i], i, walk))
    else:
        for group, listed in zip(readers, _listed(kernels, walk), strict=True):
            places = {i: _place_in_list(kernels[i], i, listed) for i in group}
            group.sort(key=places.__getitem__)
    queue = [i for i, kernel in enumerate(kernels) if kernel.root.kind in (PARAM,)]
    queue += [i for i, kernel in enumerate(kernels) if kernel.root.kind == CONSTANT]
    first = set(queue)
    queue += [i for i in range(len(kernels)) if waiting[i] == 0 and i not in first]
    schedule: list[Kernel] = []
    tuples = [
        k.root.kind == LOOP or (k.root.kind == OPAQUE and traits_of(k.root.name).kernel == "random")
        for k in kernels
    ]
    for i in queue:  # grows as kernels become ready
        if tuples[i]:
            # A loop's operands first become a tuple, which waits its turn like any other value.
            tuples[i] = False
            queue.append(i)
            continue
        kernels[i].position = len(schedule)
        schedule.append(kernels[i])
        for j in readers[i]:
            waiting[j] -= 1
            if not waiting[j]:
                queue.append(j)
    return schedule


def _place_among_readers(kernel: Kernel, index: int, walk: list[int]) -> tuple[int, int, int]:
    """The place of a kernel among those that read the same array.

    What the compiler makes of several operations, and copies in another order, stands behind what
    it began with, in the order of its walk from the results.
    """
    root = kernel.root
    copies = traits_of(root.name).view == "order"
    is_made = copies or (root.kind == FUSIBLE and len(kernel.members) > 1)
    return int(root.late), int(is_made), walk[root.index] if is_made else index


def _place_in_list(kernel: Kernel, index: int, listed: Mapping[int, int]) -> tuple[int, int, int]:
    """The same for jax 0.6: as the array's users are listed, but for copies in another order.

    These come first, the last before the others.
    """
    copies = traits_of(kernel.root.name).view == "order"
    place = -index if copies else listed.get(index, len(listed))
    return int(kernel.root.late), int(not copies), place


def _listed(kernels: list[Kernel], walk: list[int]) -> Iterator[dict[int, int]]:
    """For every kernel's result, the places of its readers in the list of its users, as of jax 0.6.

    Kernels are made from the results on. One that computes a user of the array comes to the end of
    the list. If it is the last that needs this user, the user leaves the list, and what stands last
    takes its place (XLA's `HloInstruction::RemoveUser`, as it was).
    """
    own = {kernel.root: i for i, kernel in enumerate(kernels)}
    position = [{node: n for n, node in enumerate(kernel.members)} for kernel in kernels]
    hosts: dict[ArrayNode, list[int]] = {}
    for i, kernel in enumerate(kernels):
        for node in kernel.members:
            hosts.setdefault(node, []).append(i)
    for source in kernels:
        users = [user for user in source.root.users if user in hosts]
        fused = {i for user in users for i in hosts[user] if len(position[i]) > 1}
        left = {user: len(hosts[user]) for user in users}
        entries: list[ArrayNode | int] = list(users)
        for i in sorted(fused, key=lambda i: -walk[kernels[i].root.index]):
            root = kernels[i].root
            if root in left:
                entries[entries.index(root)] = i
            for user in sorted(position[i].keys() & left.keys(), key=position[i].__getitem__):
                if user is root:
                    continue
                if i not in entries:
                    entries.append(i)
                left[user] -= 1
                if not left[user]:
                    at, last = entries.index(user), entries.pop()
                    if at < len(entries):
                        entries[at] = last
        order = [one if isinstance(one, int) else own[one] for one in entries]
        yield {i: n for n, i in enumerate(order)}


def _late_sources(kernels: list[Kernel]) -> list[Kernel]:
    place = {kernel.root: kernel for kernel in kernels}
    schedule: list[Kernel] = []
    placed: set[ArrayNode] = set()
    early = {PARAM, CONSTANT}
    loops = any(kernel.root.kind == LOOP for kernel in kernels)

    def put(kernel: Kernel) -> None:
        kernel.position = len(schedule)
        schedule.append(kernel)
        placed.add(kernel.root)

    for kernel in kernels:
        if kernel.root.kind in early:
            put(kernel)
    for kernel in kernels:
        if loops and not kernel.inputs and kernel.root not in placed:
            put(kernel)
    for kernel in kernels:
        if kernel.root in placed or (not kernel.inputs and kernel.root.users):
            continue
        for node in kernel.inputs:
            if node not in placed:
                put(place[node])
        put(kernel)
    for kernel in kernels:
        if kernel.root not in placed:
            put(kernel)
    return schedule
