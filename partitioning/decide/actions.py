"""The context that a tactic sees, its actions, and their entry into the decisions."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..ir.program import Value
from ..simulator.device import Device
from ..simulator.simulate import Simulation
from ..simulator.topology import Segment
from .flops import OpFlops
from .graph import Graph
from .node import Node
from .propagate import Conflict, assign_factor, fits, propagate
from .sharding import REPLICATED_DIM, Decision, Decisions
from .turns import split_turns


class Choice:
    """A choice for an array other than tiling a given dimension."""

    def __init__(self, name: str, doc: str):
        self.name = name
        self.__doc__ = doc

    def __repr__(self) -> str:
        return self.name


REPLICATED = Choice(
    "REPLICATED", "Replicate the array over the axis, and let nothing propagate through it."
)
FIRST_DIVISIBLE = Choice(
    "FIRST_DIVISIBLE",
    "Tile the first dimension that divides and over which no loop scans; leave the array open "
    "where none does.",
)
UNKNOWN = Choice("UNKNOWN", "Leave the array open: propagation decides.")

What = int | Choice


@dataclasses.dataclass(frozen=True)
class Action:
    """One decision a tactic asks for.

    Attributes:
      value: a value of the traced program, usually an input.
      axis: the mesh axis.
      what: a dimension (negative ones count from the end), REPLICATED, FIRST_DIVISIBLE or UNKNOWN.
      firm: True if a contradiction with an earlier tactic is an error; else the earlier one
        silently wins.
    """

    value: Value
    axis: str
    what: What
    firm: bool = False


@dataclasses.dataclass(frozen=True)
class ForceFactor:
    """An action on an op: it takes a factor, whatever its operands and results ask for.

    Attributes:
      node: the op's node in `context.graph`; of a loop, the one in its `loops`.
      axis: the mesh axis.
      factor: a factor of the node's rule.
    """

    node: Node
    axis: str
    factor: int


class Judge(Protocol):
    """Answers the questions of a searching tactic about the whole program; plans make it.

    Attributes:
      device: the device that is planned for.
      placement: mesh axis to the levels of the topology that it spans, innermost first.
      overlap: True if collectives run beside kernels.
      donated: names of donated arguments.
      work: the floating point operations of the program's ops.
      recomputed_to: bytes to keep to by recomputing activations; None without recomputation.
    """

    @property
    def device(self) -> Device: ...

    @property
    def placement(self) -> Mapping[str, Sequence[Segment]]: ...

    @property
    def overlap(self) -> bool: ...

    @property
    def donated(self) -> tuple[str, ...]: ...

    @property
    def work(self) -> OpFlops: ...

    @property
    def recomputed_to(self) -> float | None: ...

    def simulate(self) -> Simulation:
        """Simulates the program as it is decided now, with the recomputation that keeps it within
        the memory.
        """


class Tactic(Protocol):
    """A named decision rule on an axis: from the program and the decisions so far to actions.

    One that works on several axes has `axes` besides. One that searches has `search(context)`,
    which returns a `log` and other tactics as `moves`; a plan enters them one by one.
    """

    @property
    def name(self) -> str: ...

    @property
    def axis(self) -> str: ...

    def actions(self, context: Context) -> Sequence[Action | ForceFactor]: ...


class Context:
    """The program, its structure and the decisions of earlier tactics, as a tactic sees them.

    Attributes:
      graph: the traced program with rules; `graph.program` is the program itself.
      state: decisions so far; read only.
      mesh: sizes of axes.
      tactics: names of the schedule's tactics; `state.tactic` is the index of the present one.
      judge: simulates the program for tactics that search; None outside of a plan.
      notes: a tactic may add lines for the plan.
    """

    def __init__(
        self,
        graph: Graph,
        state: Decisions,
        tactics: tuple[str, ...],
        judge: Judge | None = None,
    ):
        self.graph = graph
        self.state = state
        self.mesh = state.mesh
        self.tactics = tactics
        self.judge = judge
        self.notes: list[str] = []

    @property
    def inputs(self) -> tuple[Value, ...]:
        return self.graph.program.inputs

    def tile_of(self, value: Value, axis: str) -> int | None:
        """The dimension tiled over the axis, or None."""
        dim = self.state.tiles.get(value, {}).get(axis, REPLICATED_DIM)
        return None if dim == REPLICATED_DIM else dim

    def trial(self, actions: Sequence[Action | ForceFactor]) -> Trial:
        """Applies actions and propagates, to be looked at and then kept or taken back."""
        start, notes = len(self.state.journal), len(self.notes)
        seeds = apply_actions(self, actions)
        del self.notes[notes:]
        return Trial(self, start, propagate(self.graph, self.state, seeds))

    @functools.cached_property
    def scanned(self) -> frozenset[Value]:
        """Values with a leading dimension that some loop scans over or stacks, and weights that a
        loop written out takes apart so.
        """
        found: set[Value] = set()
        for op in self.graph.program.walk():
            if op.name == "scan":
                found.update(op.inputs[op.params["num_consts"] + op.params["num_carry"] :])
                found.update(op.outputs[op.params["num_carry"] :])
        return frozenset(found | self.graph.structure.stacked_weights)


class Trial:
    """Decisions that may be taken back. Use it as a context manager: they are, on leaving."""

    def __init__(self, context: Context, start: int, conflicts: list[Conflict]):
        self.context = context
        self.start = start
        self.conflicts = conflicts

    @property
    def decisions(self) -> list[Decision]:
        """Every decision of the trial, in order."""
        return self.context.state.journal[self.start :]

    @property
    def assigned(self) -> list[tuple[Node, int]]:
        """The nodes that took a factor, with it."""
        return [(d.node, d.what) for d in self.decisions if d.value is None and d.node is not None]

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.state.rewind(self.start)


def apply_actions(
    context: Context, actions: Sequence[Action | ForceFactor]
) -> list[tuple[Value, str]]:
    """Enters actions into the state.

    Args:
      context: program and state; the state is extended.
      actions: what to enter, in order.

    Returns:
      (value, axis) of everything that changed.

    Raises:
      ValueError: a dimension that is not there or does not divide, or a contradiction.
    """
    state = context.state
    seeds: list[tuple[Any, str]] = []
    for action in actions:
        if isinstance(action, ForceFactor):
            node, axis = action.node, action.axis
            open_ = axis not in state.factors.get(node, {})
            if open_ and state.mesh[axis] > 1 and node.op is not None and node.op.regions:
                seeds.extend((v, axis) for v in split_turns(context.graph, state, node, axis))
            elif open_ and state.mesh[axis] > 1 and fits(node, action.factor, axis, state):
                seeds.extend((v, axis) for v in assign_factor(state, node, axis, action.factor))
            continue
        value, axis = action.value, action.axis
        if action.what is UNKNOWN or state.mesh[axis] == 1 or value.data is not None:
            continue
        known = state.tiles.get(value, {}).get(axis)
        if action.what is REPLICATED:
            what = REPLICATED_DIM
        elif action.what is FIRST_DIVISIBLE:
            if known is not None:
                continue
            found = first_divisible(context, value, axis)
            if found is None:
                if value.shape:
                    sizes = ", ".join(map(str, value.shape))
                    context.notes.append(
                        f"{label(value)} [{sizes}] stays replicated: no dimension divides by "
                        f"{axis}={state.mesh[axis]}"
                    )
                continue
            what = found
        else:
            assert isinstance(action.what, int)
            what = _dimension(action.what, value, axis, context, known)
        if known is not None:
            if known != what and action.firm:
                raise ValueError(_contradiction(value, axis, what, known, context))
            continue
        state.set_value(value, axis, what, None)
        seeds.append((value, axis))
        if what == REPLICATED_DIM:
            after = context.graph.updated.get(value)
            if after is not None and axis not in state.tiles.get(after, {}) and after.data is None:
                state.set_value(after, axis, REPLICATED_DIM, None)
                seeds.append((after, axis))
    return seeds


def first_divisible(context: Context, value: Value, axis: str) -> int | None:
    """The first dimension that divides by the axis and that no loop scans over, or None."""
    for dim in range(value.ndim):
        if dim == 0 and value in context.scanned:
            continue
        if context.state.divides(value, dim, axis):
            return dim
    return None


def axes_of(tactic: Tactic) -> tuple[str, ...]:
    """The mesh axes that a tactic works on."""
    return tuple(getattr(tactic, "axes", None) or (tactic.axis,))


def label(value: Value) -> str:
    return value.path or value.name or value.type_text()


def _dimension(what: int, value: Value, axis: str, context: Context, known: int | None) -> int:
    state, who = context.state, context.tactics[context.state.tactic]
    rank = value.ndim
    if not -rank <= what < rank:
        raise ValueError(
            f"tactic {who!r}: {label(value)} has shape {value.shape} and no dimension {what}; "
            f"name one of its "
            f"{rank} dimensions, or pt.REPLICATED or pt.UNKNOWN"
        )
    dim = what % rank
    if known is None and not state.divides(value, dim, axis):
        already = [a for a, d in state.tiles.get(value, {}).items() if d == dim]
        shared = f", already tiled over {already}," if already else ""
        raise ValueError(
            f"tactic {who!r}: dimension {dim} of {label(value)}, of size "
            f"{value.shape[dim]}{shared} does not divide "
            f"by axis {axis!r} of size {state.mesh[axis]}; shape {value.shape}, mesh "
            f"{state.mesh}. Choose another "
            "dimension, pt.FIRST_DIVISIBLE, or pad the array"
        )
    return dim


def _contradiction(value: Value, axis: str, what: int, known: int, context: Context) -> str:
    def text(dim: int) -> str:
        return "replicated" if dim == REPLICATED_DIM else f"tiled on dimension {dim}"

    state = context.state
    cause = next(d for d in state.journal if d.value is value and d.axis == axis)
    who, earlier = (context.tactics[index] for index in (state.tactic, cause.tactic))
    return (
        f"tactic {who!r} wants {label(value)} {value.shape} {text(what)} over axis {axis!r}, but "
        f"tactic "
        f"{earlier!r} already has it {text(known)}. Earlier tactics win: move {who!r} before it, "
        f"or leave this "
        "array out of one of them"
    )
