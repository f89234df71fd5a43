"""An integer programme over classes: a layout for each value, factors for each node, the cheapest.

Every class of values takes one of its layouts over the searched axes, every node one of the ways to
give it factors; what it takes to bring a value from the one to the other is a transport between the
two choices, so that the relaxation is tight. Kernels cost what the estimate says: arithmetic by the
node's share or traffic by the values' shares, whichever is more. What is held, and what is in use
at the places where that is most, keeps to a limit. HiGHS solves it; the solution is a list of
actions, a proposal that is judged like any other.

What it leaves out, as it is not linear: that collectives run beside kernels (they count by a
weight), sums that wait for others, and what fuses.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from ...decide.actions import REPLICATED, Action, Settle
from ...decide.flops import splits
from ...decide.graph import Node
from ...decide.sharding import ATOMIC, layout_of
from ...ir.program import Layout, Value
from .moves import Move
from .space import Space

#: How many places have a row of their own for memory, at most.
_PLACES = 24
#: Within what of the optimum the solver may stop.
_GAP = 1e-2


@dataclasses.dataclass(frozen=True)
class Solution:
    """What the programme says.

    Attributes:
      moves: at most one for each axis; None where there is no solution.
      status: of the solver, in words.
      objective: seconds by the programme, collectives by their weight; infinite without a solution.
      size: columns, of those binary, and rows.
    """

    moves: tuple[Move, ...] | None
    status: str
    objective: float
    size: tuple[int, int, int]

    def __str__(self) -> str:
        columns, binary, rows = self.size
        return f"integer programme, {columns} columns ({binary} binary), {rows} rows: {self.status}"


class Programme:
    """The integer programme of one space.

    Args:
      space: what is searched.
      axes: over which.
      limit: bytes that a device has; infinite for as many as it needs.
      weight: what a second of a collective counts against one of a kernel.
    """

    def __init__(self, space: Space, axes: Sequence[str], limit: float, weight: float = 1.0):
        self.space, self.axes, self.limit, self.weight = space, tuple(axes), limit, weight
        self.estimate = space.estimate
        self.mesh = self.estimate.mesh
        self.cost: list[float] = []
        self.binary: list[int] = []
        self.entries: list[tuple[int, int, float]] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.constant = 0.0
        self._seconds: dict[tuple[float, Layout, Layout], float] = {}
        self.share: dict[int, dict[int, float]] = {}
        self.grown: list[tuple[np.ndarray, np.ndarray, list[tuple[int, float]]]] = []
        self.choices: dict[Value, dict[int, dict[str, int]]] = {}
        self.ways: dict[Node, dict[int, dict[str, int]]] = {}
        self.layouts: dict[Value, dict[int, Layout]] = {}
        for value in space.folded.members:
            if value not in space.folded.chains.inside:
                self._value(value)
        self.asked: dict[Value, list[np.ndarray]] = {}
        for node in space.folded.nodes:
            if node.op is None:
                self._tie(node)
            else:
                self._node(node)
        self._kernels()
        self._memory_rows()

    # -- columns ----------------------------------------------------------------------------------

    def _column(self, cost: float, binary: bool) -> int:
        self.cost.append(cost)
        self.binary.append(int(binary))
        return len(self.cost) - 1

    def _row(self, entries: Sequence[tuple[int, float]], low: float, high: float) -> None:
        row = len(self.lower)
        self.entries.extend((row, column, x) for column, x in entries)
        self.lower.append(low)
        self.upper.append(high)

    def _given(self, known: dict[str, int], count: int) -> Iterator[dict[str, int]]:
        """Every way to give the axes that are open a dimension or factor, after what is decided."""
        open_ = [a for a in self.axes if a not in known]
        for given in itertools.product(range(-1, count), repeat=len(open_)):
            yield known | {a: d for a, d in zip(open_, given, strict=True) if d >= 0}

    def _fits(self, given: dict[str, int], sizes: Sequence[int]) -> bool:
        parts = [1] * len(sizes)
        for axis, at in given.items():
            if at >= 0:
                parts[at] *= self.mesh[axis]
        return all(n == 1 or (s > 0 and s % n == 0) for s, n in zip(sizes, parts, strict=True))

    def _value(self, value: Value) -> None:
        known = self.space.state.tiles.get(value, {})
        found: dict[int, dict[str, int]] = {}
        for tiles in self._given(known, value.ndim):
            if self._fits(tiles, value.shape):
                found[self._column(0.0, True)] = tiles
        self._row([(c, 1.0) for c in found], 1.0, 1.0)
        self.choices[value] = found
        self.layouts[value] = {c: layout_of(t, value.ndim) for c, t in found.items()}
        at = self.estimate._value_at[value]
        self.share[at] = {c: self.estimate._part(w) for c, w in self.layouts[value].items()}

    def _node(self, node: Node) -> None:
        rule, estimate = node.rule, self.estimate
        known = self.space.state.factors.get(node, {})
        ways: dict[int, dict[str, int]] = {}
        for factors in self._given(known, len(rule.sizes)):
            if self._fits(factors, rule.sizes):
                ways[self._column(0.0, True)] = factors
        self._row([(c, 1.0) for c in ways], 1.0, 1.0)
        self.ways[node] = ways
        axes = {c: self._axes(factors) for c, factors in ways.items()}
        at, operand = estimate._node_at[node], estimate._operand_at.get(node)
        self.share[at] = {
            c: math.prod(1 / self.mesh[a] for a, f in factors.items() if splits(node, f))
            for c, factors in ways.items()
        }
        count = len(rule.operands)
        for i, (value, dims) in enumerate(zip(node.values[:count], rule.operands, strict=True)):
            wanted = {c: tuple([axes[c].get(f, ()) for f in dims]) for c in ways}
            if operand is not None:
                self.share[operand + i] = {c: estimate._part(w) for c, w in wanted.items()}
            if value in self.choices:
                self._ask(value, node, wanted)
        made_in = {
            c: tuple([a for f, names in of.items() if f in rule.monoids for a in names])
            for c, of in axes.items()
        }
        for value, dims in zip(node.values[count:], rule.results, strict=True):
            if value not in self.choices:
                continue
            groups: dict[tuple[Layout, tuple[str, ...]], list[int]] = {}
            for c in ways:
                made = tuple([axes[c].get(f, ()) for f in dims])
                groups.setdefault((made, made_in[c]), []).append(c)
            have = self.layouts[value]
            turns, sums = self._turns(value)
            costs = np.array(
                [
                    [
                        self._made_seconds(value, made, owed, lies) * (sums if owed else turns)
                        for made, owed in groups
                    ]
                    for lies in have.values()
                ]
            )
            self._transport(list(have), list(groups.values()), costs)

    def _axes(self, factors: dict[str, int]) -> dict[int, tuple[str, ...]]:
        found: dict[int, tuple[str, ...]] = {}
        for axis, factor in factors.items():
            found[factor] = (*found.get(factor, ()), axis)
        return found

    # -- what it takes ----------------------------------------------------------------------------

    def _turns(self, value: Value) -> tuple[float, float]:
        """How often what is made is sent, and how often a sum of it, where that may wait."""
        ways, seen = self.estimate.ways, set()
        turns = float(self.estimate._made_places(value)[4].sum())
        sums, terms, term = turns, 1, value
        while term not in seen:
            seen.add(term)
            if term in ways.after_loop:
                term = ways.after_loop[term]
            elif term in ways.later:
                term = ways.later[term]
            elif term in ways.sums:
                term, terms = ways.sums[term], terms + 1
            else:
                break
        if term in self.estimate.folded.members:
            sums = min(sums, float(self.estimate._made_places(term)[4].sum()))
        return turns, sums / min(terms, 2)

    def _transfer(self, value: Value, source: Layout, target: Layout) -> float:
        key = float(value.nbytes), source, target
        known = self._seconds.get(key)
        if known is None:
            known = 0.0
            if source != target:
                known = self.weight * self.estimate._transfer(value, source, target).seconds
            self._seconds[key] = known
        return known

    def _made_seconds(
        self, value: Value, made: Layout, owed: tuple[str, ...], have: Layout
    ) -> float:
        if not owed:
            return self._transfer(value, made, have)
        held = frozenset(a for axes in have for a in axes)
        over = frozenset(a for axes in made for a in axes)
        left = tuple([tuple([a for a in axes if a not in owed]) for axes in have])
        found = self.estimate._reduction(value, owed, held & frozenset(owed), over | held)
        return self.weight * found.seconds + self._transfer(value, made, left)

    def _ask(self, value: Value, node: Node, wanted: dict[int, Layout]) -> None:
        groups: dict[Layout, list[int]] = {}
        for column, layout in wanted.items():
            groups.setdefault(layout, []).append(column)
        self._wants(value, node, groups)

    def _wants(self, value: Value, node: Node, groups: dict[Layout, list[int]]) -> None:
        have, ways = self.layouts[value], self.estimate.ways
        turns = float(ways.turns[value].sum())
        costs = np.array(
            [[self._transfer(value, lies, w) * turns for w in groups] for lies in have.values()]
        )
        cells = self._transport(list(have), list(groups.values()), costs)
        read = ways.read[value].get(node)
        if read is None or value in self.estimate._outputs:
            return
        early, late = read
        grown = []
        for (i, j), column in cells.items():
            if costs[i, j] > 0:
                target = [*groups][j]
                grown.append((column, value.nbytes * self.estimate._part(target)))
        if grown:
            self.grown.append((early, late, grown))

    def _tie(self, node: Node) -> None:
        skips = [sum(f < 0 for f in dims) for dims in node.dims]
        inside = node.owner is not None
        around = node.values[:2] if inside else node.values[::-1][:2]
        pairs = [(around, skips[:2] if inside else skips[::-1][:2])]
        if len(node.values) == 4:
            pairs.append(((node.values[2], node.values[1]), [skips[2], skips[1]]))
        for (source, target), (skip, other) in pairs:
            if source in self.choices and target in self.choices:
                groups: dict[Layout, list[int]] = {}
                for column, layout in self.layouts[target].items():
                    groups.setdefault(((),) * skip + layout[other:], []).append(column)
                self._wants(source, node, groups)

    def _transport(
        self, rows: list[int], groups: list[list[int]], costs: np.ndarray
    ) -> dict[tuple[int, int], int]:
        """Costs of pairs of choices: columns for pairs whose sums are the choices."""
        if len(rows) == 1 or len(groups) == 1:
            for i, row in enumerate(rows):
                for j, group in enumerate(groups):
                    for column in group if len(rows) == 1 else [row]:
                        self.cost[column] += float(costs[i, j])
            return {}
        least = costs.min()
        if costs.max() == least:
            self.constant += float(least)
            return {}
        cells = {
            (i, j): self._column(float(costs[i, j]), False)
            for i in range(len(rows))
            for j in range(len(groups))
        }
        for i, row in enumerate(rows):
            across = [(cells[i, j], 1.0) for j in range(len(groups))]
            self._row([*across, (row, -1.0)], 0.0, 0.0)
        for j, group in enumerate(groups):
            down = [(cells[i, j], 1.0) for i in range(len(rows))]
            self._row([*down, *((c, -1.0) for c in group)], 0.0, 0.0)
        return cells

    # -- kernels and memory -----------------------------------------------------------------------

    def _kernels(self) -> None:
        line = self.estimate.timeline
        traffic: dict[int, list[tuple[int, float]]] = {}
        for row, at, nbytes in zip(
            line._traffic_row.tolist(),
            line._traffic_share.tolist(),
            line._traffic_bytes.tolist(),
            strict=True,
        ):
            traffic.setdefault(row, []).append((at, nbytes))
        count = len(line._kernel_share)
        arithmetic = line.arithmetic(np.ones(count))
        moved_whole = np.bincount(line._traffic_row, line._traffic_bytes, count)
        rates = np.broadcast_to(line.rate(moved_whole), count)
        classes: dict[tuple[int, ...], list[dict[int, float]]] = {}
        for row, at in enumerate(line._kernel_share.tolist()):
            times, rate = line._kernel_times[row], rates[row]
            self.constant += float(times * line._kernel_fixed[row])
            moved = traffic.get(row, [])
            key = at, *sorted(i for i, _ in moved)
            done, read = classes.setdefault(key, [{}, {}])
            done[at] = done.get(at, 0.0) + float(times * arithmetic[row])
            for i, nbytes in moved:
                read[i] = read.get(i, 0.0) + float(times * nbytes / rate)
        for done, read in classes.values():
            whole = sum(done.values())
            if not whole or whole >= 64 * sum(read.values()) or whole * 64 <= sum(read.values()):
                for column, x in self._linear(done if whole > sum(read.values()) else read):
                    self.cost[column] += x
                continue
            column = self._column(1.0, False)
            for side in (done, read):
                known = self.constant
                entries = self._linear(side)
                fixed, self.constant = self.constant - known, known
                self._row([(column, 1.0), *((c, -x) for c, x in entries)], fixed, np.inf)

    def _linear(self, side: dict[int, float]) -> list[tuple[int, float]]:
        """Multiples of shares as multiples of columns; what is always whole is a constant."""
        found: dict[int, float] = {}
        for at, x in side.items():
            if at in self.share:
                for column, share in self.share[at].items():
                    found[column] = found.get(column, 0.0) + x * share
            else:
                self.constant += x
        return list(found.items())

    def _memory_rows(self) -> None:
        """What is in use keeps to the limit, where that is most in the program as it is."""
        line = self.estimate.timeline
        size = line._end + 2
        change = np.bincount(line._buffer_first, line._buffer_bytes, size)
        change -= np.bincount(line._buffer_last + 1, line._buffer_bytes, size)
        in_use = np.cumsum(change)
        before, after = np.append(0.0, in_use[:-1]), np.append(in_use[1:], 0.0)
        peaks = np.flatnonzero((in_use >= before) & (in_use > after)).tolist()
        places: list[int] = []
        apart = max(size // 100, 1)
        for place in sorted(peaks, key=lambda i: -in_use[i]):
            if len(places) < _PLACES and all(abs(place - other) >= apart for other in places):
                places.append(place)
        for place in places or [0]:
            self._memory_row(place)

    def _memory_row(self, place: int) -> None:
        line = self.estimate.timeline
        side: dict[int, float] = {}
        for at, nbytes in zip(line._held_share.tolist(), line._held_bytes.tolist(), strict=True):
            side[at] = side.get(at, 0.0) + nbytes
        live = (line._buffer_first <= place) & (place <= line._buffer_last)
        packing = self.estimate.baseline.packing
        for at, nbytes in zip(
            line._buffer_share[live].tolist(), line._buffer_bytes[live].tolist(), strict=True
        ):
            side[at] = side.get(at, 0.0) + nbytes * packing
        known = self.constant
        entries = dict(self._linear(side))
        fixed, self.constant = self.constant - known, known
        for early, late, grown in self.grown:
            count = int(((early <= place) & (place <= late)).sum())
            if count:
                for column, nbytes in grown:
                    entries[column] = entries.get(column, 0.0) + nbytes * count * packing
        scaled = [(c, x / self.limit) for c, x in entries.items()]
        self._row(scaled, -np.inf, 1.0 - fixed / self.limit)

    # -- its solution -----------------------------------------------------------------------------

    def solve(self, seconds: float | None) -> Solution:
        """The cheapest choice; what the solver stops at is told."""
        # Loading it takes most of a second, and few ask for it.
        import scipy.optimize
        import scipy.sparse

        rows, columns, values = zip(*self.entries, strict=True)
        shape = len(self.lower), len(self.cost)
        matrix = scipy.sparse.csr_array((values, (rows, columns)), shape)
        scale = 1e3 / max(float(self.estimate(self.space.seen).seconds), 1e-12)
        found = scipy.optimize.milp(
            scale * np.array(self.cost),
            integrality=np.array(self.binary),
            bounds=scipy.optimize.Bounds(0.0, np.where(self.binary, 1.0, np.inf)),
            constraints=scipy.optimize.LinearConstraint(matrix, self.lower, self.upper),
            options={"mip_rel_gap": _GAP, "time_limit": math.inf if seconds is None else seconds},
        )
        size = len(self.cost), sum(self.binary), len(self.lower)
        if found.x is None:
            return Solution(None, found.message, math.inf, size)
        objective = found.fun / scale + self.constant
        status = "optimal" if found.status == 0 else found.message
        return Solution(self._moves(found.x), status, objective, size)

    def _moves(self, x: np.ndarray) -> tuple[Move, ...]:
        """The choices as one move for each axis: what is tiled, what stays whole, what ops take."""
        found: list[Move] = []
        state, folded = self.space.state, self.space.folded
        for axis in self.axes:
            actions: list[Action | Settle] = []
            for value, choices in self.choices.items():
                tiles = choices[max(choices, key=lambda c: x[c])]
                if axis in state.tiles.get(value, ()):
                    continue
                if tiles.get(axis, ATOMIC) >= 0:
                    actions.append(Action(value, axis, tiles[axis]))
                elif value.shape:
                    actions.append(Action(value, axis, REPLICATED))
            for node, ways in self.ways.items():
                factors = ways[max(ways, key=lambda c: x[c])]
                if axis in factors and axis not in state.factors.get(node, ()):
                    actions.append(Settle(node, axis, factors[axis]))
            if actions:
                name = f"integer programme over {axis}"
                found.append(Move(name, axis, tuple(actions), folded, None, (3, len(found))))
        return tuple(found)
