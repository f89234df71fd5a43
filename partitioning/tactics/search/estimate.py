"""What a candidate would cost, in milliseconds instead of by lowering and simulating it.

On classes of ops and values (:mod:`.fold`), the collectives that lowering and its clean-ups would
leave are counted out: what an op needs in another layout than it is in, and the sums that are owed,
late as linear ops allow, once for sums of sums, scattered where they are sliced. Each kernel and
each buffer of the whole program (:mod:`.baseline`) is scaled by the share that a device keeps; the
kernels' queue and the wires then run as in the simulator. Whoever changes a few decisions pays for
those alone: what others cost is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...decide.flops import splits
from ...decide.graph import Node
from ...decide.sharding import ATOMIC, Decision, Decisions, shared
from ...ir.program import Layout, Value
from ...lower.reshard import steps
from ...rules import traits_of
from ...simulator.timing import transfer_of
from ...simulator.topology import Segment
from .baseline import Baseline, share_of
from .fold import Folded
from .timeline import Estimated, Exchange, Exchanges, MemberPlaces, Timeline
from .ways import NEVER, Ways

#: For each value and each node that reads it, the axes over which the node takes a slice of it.
_Sliced = dict[Value, dict[Node, set[str]]]


class _Look(NamedTuple):
    """What was seen of a node, for what is decided of it and around it.

    Attributes:
      asks: the values that it wants in another layout, with that layout.
      owed: the axes over which its results are still to be summed.
      share: of its work that a device does.
      operands: of a product, the share of each operand that it reads.
    """

    asks: list[tuple[Value, Layout]]
    owed: tuple[str, ...]
    share: float
    operands: tuple[float, ...]


class Estimator:
    """Estimates candidates on one folded program; a callable of decisions on classes.

    Args:
      folded: the program's classes.
      baseline: the whole program on one device.
      placement: mesh axis to the levels it spans.
      mesh: sizes of axes.
      overlap: whether collectives run beside kernels.
      gather_again: whether the backward pass gathers for itself.
    """

    def __init__(
        self,
        folded: Folded,
        baseline: Baseline,
        placement: Mapping[str, Sequence[Segment]],
        mesh: Mapping[str, int],
        overlap: bool,
        gather_again: bool = False,
    ):
        self.folded = folded
        self.baseline = baseline
        self.placement = placement
        self.mesh = dict(mesh)
        self.gather_again = gather_again
        self._key = 0
        self.state = Decisions(mesh)
        self._journal: list[Decision] = []
        self._keyed: list[Decision] = []
        self._axis = {axis: i for i, axis in enumerate(mesh)}
        self._asks: dict[Node, list[tuple[Value, Layout]]] = {}
        self._owed: dict[Node, tuple[str, ...]] = {}
        self._transfers: dict[tuple[Value, Layout, Layout], Exchange] = {}
        self._wire: dict[tuple[str, tuple[str, ...], float], Exchange] = {}
        # Candidates share most of what is decided: what was once looked at is not looked at again.
        self._looked: dict[Node, tuple[list[Value], dict[tuple[Any, ...], _Look]]] = {}
        self._taken: dict[Node, _Look] = {}
        self._firsts: dict[Value, np.ndarray] = {}
        self._tiled: dict[tuple[Any, ...], tuple[Layout, float, int]] = {}
        self._index()
        self.ways = Ways(folded, baseline.places)
        self.timeline = Timeline(
            folded,
            baseline,
            overlap,
            self._value_at,
            self._node_at,
            self._operand_at,
            self._whole,
        )

    # -- what never changes -----------------------------------------------------------------------

    def _index(self) -> None:
        """Numbers for values, nodes and operands, all of which have a share."""
        folded = self.folded
        self._value_at = {v: i for i, v in enumerate(folded.members)}
        start = len(self._value_at)
        self._node_at = {n: start + i for i, n in enumerate(folded.nodes)}
        start += len(self._node_at)
        self._operand_at: dict[Node, int] = {}
        for node in folded.nodes:
            flops = traits_of(node.op.name).flops if node.op is not None else ""
            if flops in ("matmul", "convolution"):
                self._operand_at[node] = start
                start += len(node.rule.operands)
        self._whole = start
        self._share = np.ones(start + 1)
        self._layout: dict[Value, Layout] = {v: ((),) * v.ndim for v in folded.members}
        #: Layouts by number, which are quicker to compare; 0 is whole.
        self._number = dict.fromkeys(folded.members, 0)
        for node in folded.nodes:
            self._looked[node] = [v for v in node.values if v in self._number], {}

    # -- what follows the decisions ---------------------------------------------------------------

    def __call__(self, state: Decisions) -> Estimated:
        """What these decisions cost."""
        self._sync(state)
        return self.timeline.run(self._share, self._collectives())

    def key_of(self, state: Decisions) -> int:
        """A number for what is decided, in whatever order."""
        old, new = self._keyed, state.journal
        low = shared(old, new)
        colour, axes = self.folded.colour, self._axis
        for value, axis, what in [(d.value, d.axis, d.what) for d in old[low:] + new[low:]]:
            if value is not None:
                self._key ^= hash((colour[value], axes[axis], what))
        self._keyed[low:] = new[low:]
        return self._key

    def _sync(self, state: Decisions) -> None:
        """Looks again at what is decided otherwise than at the last call."""
        self.state = state
        old, new = self._journal, state.journal
        low = shared(old, new)
        changed = old[low:] + new[low:]
        self._journal[low:] = new[low:]
        dirty: dict[Node, None] = {}
        values: dict[Value, None] = {}
        for decision in changed:
            if decision.value is not None:
                values[decision.value] = None
            elif decision.node is not None:
                dirty[decision.node] = None
        share, layout, tiled = self._share, self._layout, self._tiled
        for value in values:
            tiles = state.tiles.get(value, {})
            kind = value.ndim, *tiles.items()
            known = tiled.get(kind)
            if known is None:
                number = len(tiled) + 1
                known = tiled[kind] = state.layout(value), share_of(tiles, self.mesh), number
            if layout[value] == known[0]:
                continue
            layout[value], share[self._value_at[value]], self._number[value] = known
            dirty.update(dict.fromkeys(self.folded.touching.get(value, ())))
        factors, numbers, taken = state.factors, self._number, self._taken
        for node in dirty:
            decided = factors.get(node)
            around, looks = self._looked[node]
            seen: tuple[Any, ...] = tuple([numbers[value] for value in around])
            if decided:
                seen = (*decided.items(), *seen)
            look = looks.get(seen)
            if look is None:
                look = looks[seen] = self._look(node)
            if taken.get(node) is not look:
                taken[node] = look
                self._take(node, look)

    def _take(self, node: Node, look: _Look) -> None:
        """Notes what a node asks and owes."""
        if look.asks:
            self._asks[node] = look.asks
        else:
            self._asks.pop(node, None)
        if look.owed:
            self._owed[node] = look.owed
        else:
            self._owed.pop(node, None)
        if node.op is not None:
            self._share[self._node_at[node]] = look.share
            if look.operands:
                start = self._operand_at[node]
                self._share[start : start + len(look.operands)] = look.operands

    def _look(self, node: Node) -> _Look:
        """What a node asks of its values' layouts, and what it owes, as things are decided."""
        layout = self._layout
        if node.op is None:
            return _Look(list(self._tied(node)), (), 1.0, ())
        axes: dict[int, tuple[str, ...]] = {}
        share = 1.0
        for axis, factor in self.state.factors.get(node, {}).items():
            axes[factor] = (*axes.get(factor, ()), axis)
            if splits(node, factor):
                share /= self.mesh[axis]
        rule, count = node.rule, len(node.op.inputs)
        asks, operands = [], []
        for value, dims in zip(node.values[:count], rule.operands, strict=True):
            wanted = tuple([axes.get(f, ()) for f in dims])
            have = layout.get(value)
            if node in self._operand_at:
                operands.append(self._part(wanted))
            if have is not None and have != wanted:
                asks.append((value, wanted))
        owed = [a for f, names in axes.items() if f in rule.monoids for a in names]
        for value, dims in zip(node.values[count:], rule.results, strict=True):
            have = layout.get(value)
            made = tuple([axes.get(f, ()) for f in dims])
            if have is not None and have != made and not owed:
                asks.append((value, made))
        return _Look(asks, tuple(owed), share, tuple(operands))

    def _tied(self, node: Node) -> Iterable[tuple[Value, Layout]]:
        """What values in and around a loop ask of each other."""
        layout = self._layout
        skips = [sum(f < 0 for f in dims) for dims in node.dims]
        around = node.values[:2] if node.owner is not None else node.values[::-1][:2]
        pairs = [(around, skips[:2] if node.owner is not None else skips[::-1][:2])]
        if len(node.values) == 4:
            pairs.append(((node.values[2], node.values[1]), [skips[2], skips[1]]))
        for (source, target), (skip, other) in pairs:
            have, wanted = layout.get(source), layout.get(target)
            if have is None or wanted is None:
                continue
            asked = ((),) * skip + wanted[other:]
            if have != asked:
                yield source, asked

    def _part(self, layout: Layout) -> float:
        share = 1.0
        for axes in layout:
            for axis in axes:
                share /= self.mesh[axis]
        return share

    def _collectives(self) -> Exchanges:
        """Every collective that would be left, with where its members run."""
        found: Exchanges = []
        sliced: _Sliced = {}
        wanted: dict[tuple[Value, Layout, bool], list[np.ndarray]] = {}
        terms: dict[tuple[Value, tuple[str, ...]], list[Value]] = {}
        for node, asks in self._asks.items():
            count = 0 if node.op is None else len(node.op.inputs)
            for value, target in asks:
                have = self._layout[value]
                made = node.op is not None and value not in node.values[:count]
                if made:
                    transfer = self._transfer(value, target, have)
                    if transfer.seconds:
                        at = self.ways.made[value]
                        found.append((transfer, (at, at, self._first(value), at, self._often(at))))
                    continue
                more = {a for axes in target for a in axes} - {a for axes in have for a in axes}
                if more:
                    sliced.setdefault(value, {})[node] = more
                transfer = self._transfer(value, have, target)
                if transfer.seconds:
                    again = self.gather_again and node.op is not None and node.op.backward
                    self._want(wanted, value, target, again, self.ways.read[value][node])
        for (value, target, _), (first, last) in wanted.items():
            transfer = self._transfer(value, self._layout[value], target)
            at = self.ways.made[value]
            found.append((transfer, (first, at, first, last, self.ways.turns[value])))
        for node, owed in self._owed.items():
            assert node.op is not None
            for value in node.values[len(node.op.inputs) :]:
                if value in self._layout:
                    self._reduce(value, owed, sliced, terms)
        for (total, owed), leaves in terms.items():
            value = total if len(leaves) > 1 else leaves[0]
            found.append(self._reduction(value, owed, sliced))
        return found

    def _want(
        self,
        wanted: dict[tuple[Value, Layout, bool], list[np.ndarray]],
        value: Value,
        target: Layout,
        again: bool,
        read: list[np.ndarray],
    ) -> None:
        """Notes who wants a value in a layout; a whole view is a view of the whole."""
        first, last = read
        while value in self.ways.view and not any(target):
            source, at = self.ways.view[value]
            have = {a for axes in self._layout[source] for a in axes}
            if have != {a for axes in self._layout[value] for a in axes}:
                break
            count = len(self.folded.members[source])
            early, late = np.full(count, NEVER), np.full(count, -1)
            np.minimum.at(early, at, first)
            np.maximum.at(late, at, last)
            value, first, last, target = source, early, late, ((),) * source.ndim
        known = wanted.get((value, target, again))
        if known is None:
            wanted[value, target, again] = [first, last]
        else:
            known[0] = np.minimum(known[0], first)
            known[1] = np.maximum(known[1], last)

    def _often(self, places: np.ndarray) -> np.ndarray:
        """How often what stands at these places runs."""
        return self.ways.times[np.maximum(places, 0)]

    def _first(self, value: Value) -> np.ndarray:
        """Where each member is read first."""
        found = self._firsts.get(value)
        if found is None:
            found = np.full(len(self.folded.members[value]), self.ways.end)
            for first, _ in self.ways.read.get(value, {}).values():
                np.minimum(found, first, out=found)
            self._firsts[value] = found
        return found

    def _transfer(self, value: Value, source: Layout, target: Layout) -> Exchange:
        """What it takes to bring a value from one layout to another."""
        known = self._transfers.get((value, source, target))
        if known is None:
            seconds, levels, layout = 0.0, {}, source
            for name, params, after in steps(source, target):
                if name != "all_slice":
                    nbytes = value.nbytes * self._part(after if name == "all_gather" else layout)
                    wire = self._collective(name, tuple(params["axes"]), nbytes)
                    seconds += wire.seconds
                    levels.update(dict.fromkeys(wire.levels))
                layout = after
            grown = value.nbytes * self._part(target)
            known = Exchange(seconds, tuple(levels), grown if seconds else 0.0)
            self._transfers[value, source, target] = known
        return known

    def _collective(self, name: str, axes: tuple[str, ...], nbytes: float) -> Exchange:
        known = self._wire.get((name, axes, nbytes))
        if known is None:
            segments = [s for axis in axes for s in self.placement.get(axis, ())]
            found = transfer_of(name, nbytes, segments, self.baseline.device)
            known = Exchange(found.seconds, found.levels, 0.0)
            self._wire[name, axes, nbytes] = known
        return known

    def _reduce(
        self,
        value: Value,
        owed: tuple[str, ...],
        sliced: _Sliced,
        terms: dict[tuple[Value, tuple[str, ...]], list[Value]],
    ) -> None:
        """Follows a sum that is owed to where it is done: alone, or with the terms of a sum."""
        start, term = value, value
        for _ in range(64):
            outside = self._loop_total(term)
            if outside is not None and self._cut(term, sliced) <= set(owed):
                term = outside
            elif self._cut(term, sliced):
                break
            elif term in self.ways.later:
                term = self.ways.later[term]
            elif term in self.ways.sums:
                leaf = term
                while term in self.ways.sums:
                    term = self.ways.sums[term]
                    if self._cut(term, {}):
                        break
                terms.setdefault((term, owed), []).append(leaf)
                return
            else:
                break
            if term is start:
                break
        terms.setdefault((term, owed), []).append(term)

    def _loop_total(self, value: Value) -> Value | None:
        """What a loop adds up of a value, as it comes out of the loop."""
        for _ in range(64):
            if value in self.ways.after_loop:
                return self.ways.after_loop[value]
            if value not in self.ways.sums:
                return None
            value = self.ways.sums[value]
        return None

    def _scattered(self, value: Value, owed: tuple[str, ...], sliced: _Sliced) -> set[str]:
        """The axes over which what is owed is sliced as soon as it is summed."""
        have = {a for axes in self._layout[value] for a in axes}
        found = {a for a in owed if a in have}
        by = sliced.get(value)
        if by:
            readers = self.ways.read.get(value, {})
            for axis in owed:
                if all(axis in by.get(node, ()) for node in readers):
                    found.add(axis)
        whole = self.state.tiles.get(value, {})
        return {a for a in found if whole.get(a) != ATOMIC}

    def _cut(self, value: Value, sliced: _Sliced) -> set[str]:
        """The axes over which less of a value is kept, or read, than its op makes."""
        kept = {a for axes in self._layout[value] for a in axes} - self._made_axes(value)
        return kept.union(*sliced.get(value, {}).values())

    def _made_axes(self, value: Value) -> set[str]:
        """The axes over which a value is tiled as its op makes it, before it is resharded."""
        node = self.ways.maker.get(value)
        if node is None:
            return {a for axes in self._layout[value] for a in axes}
        dims = node.rule.results[node.values.index(value) - len(node.rule.operands)]
        return {a for a, f in self.state.factors.get(node, {}).items() if f in dims}

    def _reduction(
        self, value: Value, owed: tuple[str, ...], sliced: _Sliced
    ) -> tuple[Exchange, MemberPlaces]:
        scattered = self._scattered(value, owed, sliced)
        share = 1.0
        # What is sliced over other axes is so afterwards.
        for axis in self._made_axes(value) - scattered:
            share /= self.mesh[axis]
        nbytes = value.nbytes * share
        seconds, levels = 0.0, {}
        for name, axes in (
            ("reduce_scatter", tuple(a for a in owed if a in scattered)),
            ("all_reduce", tuple(a for a in owed if a not in scattered)),
        ):
            if axes:
                wire = self._collective(name, axes, nbytes)
                seconds += wire.seconds
                levels.update(dict.fromkeys(wire.levels))
                nbytes *= self._part((axes,)) if name == "reduce_scatter" else 1.0
        at = self.ways.made[value]
        return Exchange(seconds, tuple(levels), 0.0), (
            at,
            at,
            self._first(value),
            at,
            self._often(at),
        )
