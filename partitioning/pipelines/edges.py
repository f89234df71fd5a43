"""Data edges of a pipeline: which work of a segment reads which, within one micro-batch."""

from __future__ import annotations

import dataclasses
import functools
import graphlib
from collections.abc import Mapping, Sequence
from typing import Literal

#: "backward" makes gradients of inputs and of weights at once; "inputs" and "weights" one of them.
Work = Literal["forward", "backward", "inputs", "weights"]
WORKS: tuple[Work, ...] = ("forward", "backward", "inputs", "weights")

#: (segment, work); of edges the work is "forward" or "backward".
Task = tuple[int, Work]


@dataclasses.dataclass(frozen=True)
class Edges:
    """The data edges of a step cut into segments.

    They are the same in every micro-batch. A backward pass is one task here, however a table splits
    it: who reads ("backward") of a segment waits for its "backward" or "inputs", and "weights" of a
    segment waits for its "inputs".

    Attributes:
      reads: (task, the tasks that it reads) for every task there is. A segment without a backward
        task is never differentiated, and keeps no activations.
    """

    reads: tuple[tuple[Task, tuple[Task, ...]], ...]

    def __post_init__(self) -> None:
        known = dict(self.reads)
        if len(known) < len(self.reads):
            raise ValueError("edges name a task twice")
        for task, sources in self.reads:
            for segment, work in (task, *sources):
                if work not in ("forward", "backward"):
                    raise ValueError(
                        f"edges are of 'forward' and 'backward', not of {work!r} of segment "
                        f"{segment}; a table splits a backward pass, edges do not"
                    )
            for source in sources:
                if source not in known:
                    raise ValueError(
                        f"{text(task)} reads {text(source)}, which is no task of these edges"
                    )
        try:
            _ = self.order
        except graphlib.CycleError as error:
            circle = " reads ".join(text(task) for task in reversed(error.args[1]))
            raise ValueError(f"edges go in a circle: {circle}") from None

    @functools.cached_property
    def sources(self) -> Mapping[Task, tuple[Task, ...]]:
        """The tasks that each task reads."""
        return dict(self.reads)

    @functools.cached_property
    def readers(self) -> Mapping[Task, tuple[Task, ...]]:
        """The tasks that read each task."""
        found: dict[Task, list[Task]] = {task: [] for task, _ in self.reads}
        for task, sources in self.reads:
            for source in sources:
                found[source].append(task)
        return {task: tuple(readers) for task, readers in found.items()}

    @functools.cached_property
    def order(self) -> tuple[Task, ...]:
        """The tasks, each after those that it reads."""
        return tuple(graphlib.TopologicalSorter(dict(self.reads)).static_order())

    @property
    def segments(self) -> int:
        """The number of segments, numbered from 0."""
        return 1 + max((segment for (segment, _), _ in self.reads), default=-1)

    def has_backward(self, segment: int) -> bool:
        """True if a segment is differentiated."""
        return (segment, "backward") in self.sources


def text(task: Task) -> str:
    """A task in words: "forward of segment 2"."""
    return f"{task[1]} of segment {task[0]}"


def chain(segments: int) -> Edges:
    """Segments forward in order, then backward in reverse; the last one makes the loss."""
    return forward_chains([range(segments)])


def forward_chains(chains: Sequence[Sequence[int]], *, recycled: bool = False) -> Edges:
    """Several forward chains that feed one backward pass, that of the last chain (3F1B).

    Args:
      chains: the segments of each chain in order. The last segment of the last chain makes the
        loss from the results of all chains.
      recycled: True if each chain begins with the result of the one before, as where a network is
        applied to its own output; False if they only meet in the loss, as target networks do.
    """
    *others, last = [tuple(one) for one in chains]
    if not last or not all(others):
        raise ValueError("a chain without segments; every chain needs at least one")
    reads: list[tuple[Task, tuple[Task, ...]]] = []
    before: list[Task] = []
    for one in (*others, last):
        for place, segment in enumerate(one):
            sources: list[Task] = [(one[place - 1], "forward")] if place else before
            if segment == last[-1] and not recycled:
                sources = [*sources, *((other[-1], "forward") for other in others)]
            reads.append(((segment, "forward"), tuple(sources)))
        before = [(one[-1], "forward")] if recycled else []
    for place, segment in reversed([*enumerate(last)]):
        above: list[Task] = [(later, "backward") for later in last[place + 1 : place + 2]]
        reads.append(((segment, "backward"), ((segment, "forward"), *above)))
    return Edges(tuple(reads))
