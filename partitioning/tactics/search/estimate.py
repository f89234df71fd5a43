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
from typing import Any

import numpy as np

from ...decide.flops import splits
from ...decide.graph import Node
from ...decide.sharding import ATOMIC, Decision, Decisions, layout_of
from ...ir.program import Layout, Value
from ...lower.reshard import steps
from ...rules import traits_of
from ...simulator.timing import transfer_of
from ...simulator.topology import Segment, spanned
from .baseline import Baseline, share_of
from .candidate_state import NONE, Ask, Look, Seen, Tiling
from .classes import Folded
from .def_use import NEVER, Ways
from .pending_reductions import Sums
from .timeline import Estimated, Exchange, Exchanges, MemberPlaces, Timeline


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
        self._axis = {axis: i for i, axis in enumerate(mesh)}
        self._transfers: dict[tuple[Value, Layout, Layout], Exchange] = {}
        self._wire: dict[tuple[str, tuple[str, ...], float], Exchange] = {}
        # Candidates share most of what is decided: what was once looked at is not looked at again.
        self._looked: dict[Node, tuple[list[Value], dict[tuple[Any, ...], Look]]] = {}
        self._sent: dict[Value, MemberPlaces] = {}
        self._reduced: dict[tuple[Any, ...], Exchange] = {}
        self._tilings: dict[tuple[Any, ...], Tiling] = {}
        self._index()
        self.ways = Ways(folded, baseline.places, baseline.runs)
        self.timeline = Timeline(
            folded,
            baseline,
            overlap,
            self._value_at,
            self._node_at,
            self._operand_at,
            self._made_at,
            self._whole,
        )

    # -- what never changes -----------------------------------------------------------------------

    def _index(self) -> None:
        """Numbers for values, nodes and operands, all of which have a share."""
        folded, chains = self.folded, self.folded.chains
        known = [v for v in folded.members if v not in chains.inside]
        self._value_at = {v: i for i, v in enumerate(known)}
        start = len(known)
        self._node_at = {n: start + i for i, n in enumerate(folded.nodes)}
        start += len(folded.nodes)
        # What is inside of a chain is split as the chain is.
        self._value_at |= {v: self._node_at[n] for v, n in chains.inside.items()}
        self._node_at |= {n: self._node_at[of] for n, of in chains.of.items()}
        self._node_at |= {n: self._value_at[v] for n, v in chains.leaves.items()}
        self._operand_at: dict[Node, int] = {}
        for node in folded.nodes:
            flops = traits_of(node.op.name).flops if node.op is not None else ""
            if flops in ("matmul", "convolution"):
                self._operand_at[node] = start
                start += len(node.rule.operands)
        self._made_at: dict[Value, tuple[int, int]] = {}
        self._results_at: dict[Node, int] = {}
        for node in folded.nodes:
            results = node.values[len(node.rule.operands) :]
            if node.op is not None and all(v in self._value_at for v in results):
                self._results_at[node] = start
                for i, value in enumerate(results):
                    self._made_at[value] = start + 2 * i, start + 2 * i + 1
                start += 2 * len(results)
        self._whole = start
        # How many kernels read a value, of a class the first member that is written at all.
        self._readers: dict[Value, int] = {}
        for value, count in self.baseline.readers().items():
            stands = folded.class_of.get(value)
            if stands is not None:
                self._readers.setdefault(stands, count)
        outputs = folded.program.outputs
        self._outputs = {folded.class_of[v] for v in outputs if v in folded.class_of}
        whole = {v: self._tiling(v.ndim, {}) for v in known}
        self._nothing = Seen(whole, {}, {}, {}, np.ones(start + 1))
        for node in folded.nodes:
            self._looked[node] = [v for v in node.values if v in whole], {}

    # -- what follows the decisions ---------------------------------------------------------------

    def __call__(self, seen: Seen) -> Estimated:
        """What decisions cost of which this was seen."""
        return self.timeline.run(seen.share, self._collectives(seen))

    def key_of(self, decisions: Iterable[Decision], before: int = 0) -> int:
        """A number for these decisions and those before them, in whatever order."""
        colour, axes, key = self.folded.colour, self._axis, before
        for _, axis, value, _, what in decisions:
            if value is not None:
                key ^= hash((colour[value], axes[axis], what))
        return key

    def see(
        self, state: Decisions, decisions: Iterable[Decision], before: Seen | None = None
    ) -> Seen:
        """Looks at what decisions touch; what was seen before them is kept for the rest.

        Args:
          state: all that is decided.
          decisions: the last of it.
          before: what was seen before them; None where they are all there are.
        """
        seen = (before or self._nothing).copy()
        dirty: dict[Node, None] = {}
        values: dict[Value, None] = {}
        for _, _, value, node, _ in decisions:
            if value is not None:
                values[value] = None
            elif node is not None:
                dirty[node] = None
        tiled, share, touching = seen.tiled, seen.share, self.folded.touching
        for value in values:
            tiling = self._tiling(len(value.shape), state.tiles.get(value, {}))
            if tiling.number != tiled[value].number:
                dirty.update(dict.fromkeys(touching.get(value, ())))
                share[self._value_at[value]] = tiling.share
            tiled[value] = tiling
        factors, looked = state.factors, self._looked
        for node in dirty:
            decided = factors.get(node)
            around, looks = looked[node]
            key: tuple[Any, ...] = tuple([tiled[value].number for value in around])
            if decided:
                key = (*decided.items(), *key)
            look = looks.get(key)
            if look is None:
                look = looks[key] = self._look(node, decided or {}, seen)
            if seen.looks.get(node) is not look:
                self._take(node, look, seen)
        return seen

    def _tiling(self, rank: int, tiles: Mapping[str, int]) -> Tiling:
        kind = rank, *tiles.items()
        known = self._tilings.get(kind)
        if known is None:
            layout = layout_of(tiles, rank)
            whole = frozenset(a for a, dim in tiles.items() if dim == ATOMIC)
            share = share_of(tiles, self.mesh)
            numbers = {t.layout: t.number for t in self._tilings.values()}
            number = numbers.get(layout, len(numbers))
            known = self._tilings[kind] = Tiling(layout, share, number, _over(layout), whole)
        return known

    def _take(self, node: Node, look: Look, seen: Seen) -> None:
        """Notes what a node asks and owes."""
        seen.looks[node] = look
        if look.asks:
            seen.asks[node] = look.asks
        else:
            seen.asks.pop(node, None)
        if look.owed:
            seen.owed[node] = look.owed
        else:
            seen.owed.pop(node, None)
        if node.op is not None:
            seen.share[self._node_at[node]] = look.share
            if look.operands:
                start = self._operand_at[node]
                seen.share[start : start + len(look.operands)] = look.operands
            start = self._results_at.get(node, -1)
            if start >= 0:
                seen.share[start : start + len(look.results)] = look.results

    def _look(self, node: Node, factors: Mapping[str, int], seen: Seen) -> Look:
        """What a node asks of its values' layouts, and what it owes, as things are decided."""
        tiled = seen.tiled
        if node.op is None:
            asks = [self._ask(v, tiled[v].layout, asked) for v, asked in self._tied(node, tiled)]
            return Look(asks, (), 1.0, (), (), ())
        axes: dict[int, tuple[str, ...]] = {}
        share = 1.0
        for axis, factor in factors.items():
            axes[factor] = (*axes.get(factor, ()), axis)
            if splits(node, factor):
                share /= self.mesh[axis]
        rule, count = node.rule, len(node.rule.operands)
        asks, operands, over = [], [], []
        results: list[float] = []
        for value, dims in zip(node.values[:count], rule.operands, strict=True):
            wanted = tuple([axes.get(f, ()) for f in dims])
            if node in self._operand_at:
                operands.append(self._part(wanted))
            if value in tiled and (have := tiled[value].layout) != wanted:
                asks.append(self._ask(value, have, wanted))
        owed = [a for f, names in axes.items() if f in rule.monoids for a in names]
        for value, dims in zip(node.values[count:], rule.results, strict=True):
            made = tuple([axes.get(f, ()) for f in dims])
            over.append(_over(made))
            share_made = kept = self._part(made)
            if value in tiled and (have := tiled[value].layout) != made:
                sent = self._transfer(value, made, have)
                # A sum is scattered to where slices alone lead.
                if not owed or sent.seconds:
                    asks.append(Ask(value, have, NONE, sent, True))
                if owed or sent.seconds or self._cut(value, tiled[value].share / share_made):
                    kept = tiled[value].share
            results += share_made, kept
        over.append(frozenset(factors))
        return Look(asks, tuple(owed), share, tuple(operands), tuple(over), tuple(results))

    def _cut(self, value: Value, share: float) -> bool:
        """Whether a slice of what is made is written before it is read, as fusion weighs it."""
        readers = self._readers.get(value, 1)
        return readers - 1 > (readers + 1) * share

    def _ask(self, value: Value, have: Layout, target: Layout) -> Ask:
        """What it takes to have a value in another layout than it lies in."""
        more = _over(target) - _over(have)
        return Ask(value, target, more, self._transfer(value, have, target), False)

    def _tied(self, node: Node, tiled: Mapping[Value, Tiling]) -> Iterable[tuple[Value, Layout]]:
        """What values in and around a loop ask of each other."""
        skips = [sum(f < 0 for f in dims) for dims in node.dims]
        around = node.values[:2] if node.owner is not None else node.values[::-1][:2]
        pairs = [(around, skips[:2] if node.owner is not None else skips[::-1][:2])]
        if len(node.values) == 4:
            pairs.append(((node.values[2], node.values[1]), [skips[2], skips[1]]))
        for (source, target), (skip, other) in pairs:
            if source not in tiled or target not in tiled:
                continue
            asked = ((),) * skip + tiled[target].layout[other:]
            if tiled[source].layout != asked:
                yield source, asked

    def _part(self, layout: Layout) -> float:
        share = 1.0
        for axes in layout:
            for axis in axes:
                share /= self.mesh[axis]
        return share

    def _collectives(self, seen: Seen) -> Exchanges:
        """Every collective that would be left, with where its members run."""
        found: Exchanges = []
        sliced: dict[Value, dict[Node, frozenset[str]]] = {}
        wanted: dict[tuple[Value, Layout, bool], list[np.ndarray]] = {}
        read = self.ways.read
        moved: set[Value] = set()
        for node, asks in seen.asks.items():
            for value, target, more, transfer, result in asks:
                if more:
                    sliced.setdefault(value, {})[node] = more
                if transfer.seconds:
                    if result:
                        found.append((transfer, self._made_places(value)))
                        moved.add(value)
                    else:
                        again = self.gather_again and node.op is not None and node.op.backward
                        self._want(wanted, value, target, again, read[value][node], seen)
        for (value, target, _), (first, last) in wanted.items():
            transfer = self._transfer(value, seen.tiled[value].layout, target)
            at = self.ways.made[value]
            found.append((transfer, (first, at, first, last, self.ways.turns[value])))
        sums = Sums(self.ways, seen, sliced)
        for node, owed in seen.owed.items():
            for value in node.values[len(node.rule.operands) :]:
                if value in seen.tiled:
                    sums.follow(value, owed)
        for (total, owed), leaves in sums.terms.items():
            value = total if len(leaves) > 1 else leaves[0]
            scattered = NONE if value in moved else sums.scattered(value, owed)
            made = sums.made(value)
            transfer = self._reduction(value, owed, scattered, made)
            found.append((transfer, self._made_places(value)))
        return found

    def _made_places(self, value: Value) -> MemberPlaces:
        """Where what is sent as soon as it is made is asked for, waited for and read."""
        found = self._sent.get(value)
        if found is None:
            at, first = (
                self.ways.made[value],
                np.full(len(self.folded.members[value]), self.ways.end),
            )
            for early, _ in self.ways.read.get(value, {}).values():
                np.minimum(first, early, out=first)
            found = self._sent[value] = at, at, first, at, self.ways.times[np.maximum(at, 0)]
        return found

    def _want(
        self,
        wanted: dict[tuple[Value, Layout, bool], list[np.ndarray]],
        value: Value,
        target: Layout,
        again: bool,
        read: list[np.ndarray],
        seen: Seen,
    ) -> None:
        """Notes who wants a value in a layout; a whole view is a view of the whole."""
        (first, last), tiled = read, seen.tiled
        while value in self.ways.view and not any(target):
            source, at = self.ways.view[value]
            if source not in tiled or tiled[source].over != tiled[value].over:
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
            # What goes out is held throughout, and brought to its place there.
            kept = not seconds or value in self._outputs
            grown = 0.0 if kept else value.nbytes * self._part(target)
            known = Exchange(seconds, tuple(levels), grown)
            self._transfers[value, source, target] = known
        return known

    def _collective(self, name: str, axes: tuple[str, ...], nbytes: float) -> Exchange:
        known = self._wire.get((name, axes, nbytes))
        if known is None:
            found = transfer_of(name, nbytes, spanned(self.placement, axes), self.baseline.device)
            known = Exchange(found.seconds, found.levels, 0.0)
            self._wire[name, axes, nbytes] = known
        return known

    def _reduction(
        self, value: Value, owed: tuple[str, ...], scattered: frozenset[str], made: frozenset[str]
    ) -> Exchange:
        """What it takes to sum a value over the axes that are owed, some of them scattered."""
        key = value, owed, scattered, made
        known = self._reduced.get(key)
        if known is not None:
            return known
        share = 1.0
        # What is sliced over other axes is so afterwards.
        for axis in made - scattered:
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
        known = self._reduced[key] = Exchange(seconds, tuple(levels), 0.0)
        return known


def _over(layout: Layout) -> frozenset[str]:
    """The axes of a layout."""
    return frozenset([a for axes in layout for a in axes])
