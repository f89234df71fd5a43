"""Estimates of a candidate's cost, in milliseconds and without lowering or simulating it.

On classes of ops and values (:mod:`.classes`), the collectives that lowering and its clean-ups
would leave are counted: what an op needs in another layout than it is in, and pending reductions,
late as linear ops allow, once for sums of sums, scattered where they are sliced. Each kernel and
each buffer of the whole program (:mod:`.baseline`) is scaled by the share that a device keeps; the
kernels' queue and the wires then run as in the simulator. A candidate that changes a few decisions
pays for those alone: all other costs are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...decide.flops import splits
from ...decide.node import Node
from ...decide.sharding import REPLICATED_DIM, Decision, Decisions, layout_of
from ...ir.program import Layout, Value
from ...lower.reshard import steps
from ...rules import traits_of
from ...simulator.timing import transfer_of
from ...simulator.topology import Segment, spanned
from .baseline import Baseline, share_of
from .candidate_state import NO_AXES, CandidateState, NodeCost, ReshardRequest, Tiling
from .classes import ClassGraph
from .def_use import NEVER, DefUse
from .pending_reductions import PendingReductions
from .timeline import Estimated, Exchange, Exchanges, MemberPlaces, Timeline


class Estimator:
    """Estimates candidates on one program's classes; a callable of decisions on classes.

    Args:
      classes: the program's classes.
      baseline: the whole program on one device.
      placement: mesh axis to the levels it spans.
      mesh: sizes of axes.
      overlap: True if collectives run beside kernels.
    """

    def __init__(
        self,
        classes: ClassGraph,
        baseline: Baseline,
        placement: Mapping[str, Sequence[Segment]],
        mesh: Mapping[str, int],
        overlap: bool,
    ):
        self.classes = classes
        self.baseline = baseline
        self.placement = placement
        self.mesh = dict(mesh)
        self._axis = {axis: i for i, axis in enumerate(mesh)}
        self._transfers: dict[tuple[Value, Layout, Layout], Exchange] = {}
        self._wire: dict[tuple[str, tuple[str, ...], float], Exchange] = {}
        # Candidates share most of what is decided: what was once looked at is not looked at again.
        self._node_costs: dict[Node, tuple[list[Value], dict[tuple[Any, ...], NodeCost]]] = {}
        self._places_of_def: dict[Value, MemberPlaces] = {}
        self._reduced: dict[tuple[Any, ...], Exchange] = {}
        self._tilings: dict[tuple[Any, ...], Tiling] = {}
        self._index()
        self.def_use = DefUse(classes, baseline.places, baseline.runs)
        self.timeline = Timeline(
            classes,
            baseline,
            overlap,
            self._value_at,
            self._node_at,
            self._operand_at,
            self._made_at,
            self._one_at,
        )

    # -- what never changes -----------------------------------------------------------------------

    def _index(self) -> None:
        """Numbers the values, nodes and operands, which each have a share."""
        classes, chains = self.classes, self.classes.chains
        known = [v for v in classes.members if v not in chains.inside]
        self._value_at = {v: i for i, v in enumerate(known)}
        start = len(known)
        self._node_at = {n: start + i for i, n in enumerate(classes.nodes)}
        start += len(classes.nodes)
        # What is inside of a chain is split as the chain is.
        self._value_at |= {v: self._node_at[n] for v, n in chains.inside.items()}
        self._node_at |= {n: self._node_at[of] for n, of in chains.of.items()}
        self._node_at |= {n: self._value_at[v] for n, v in chains.leaves.items()}
        self._operand_at: dict[Node, int] = {}
        for node in classes.nodes:
            flops = traits_of(node.op.name).flops if node.op is not None else ""
            if flops in ("matmul", "convolution"):
                self._operand_at[node] = start
                start += len(node.rule.operands)
        self._made_at: dict[Value, tuple[int, int]] = {}
        self._results_at: dict[Node, int] = {}
        for node in classes.nodes:
            results = node.values[len(node.rule.operands) :]
            if node.op is not None and all(v in self._value_at for v in results):
                self._results_at[node] = start
                for i, value in enumerate(results):
                    self._made_at[value] = start + 2 * i, start + 2 * i + 1
                start += 2 * len(results)
        self._one_at = start
        # How many kernels read a value, of a class the first member that is written at all.
        self._readers: dict[Value, int] = {}
        for value, count in self.baseline.readers().items():
            stands = classes.class_of.get(value)
            if stands is not None:
                self._readers.setdefault(stands, count)
        outputs = classes.program.outputs
        self._outputs = {classes.class_of[v] for v in outputs if v in classes.class_of}
        unsplit = {v: self._tiling(v.ndim, {}) for v in known}
        self._undecided = CandidateState(unsplit, {}, {}, {}, np.ones(start + 1))
        for node in classes.nodes:
            self._node_costs[node] = [v for v in node.values if v in unsplit], {}

    # -- what follows the decisions ---------------------------------------------------------------

    def __call__(self, state: CandidateState) -> Estimated:
        """Estimates the cost of a state."""
        return self.timeline.run(state.shares, self._collectives(state))

    def key_of(self, decisions: Iterable[Decision], before: int = 0) -> int:
        """A number for these decisions and those before them, in whatever order."""
        colour, axes, key = self.classes.colour, self._axis, before
        for _, axis, value, _, what in decisions:
            if value is not None:
                key ^= hash((colour[value], axes[axis], what))
        return key

    def advance(
        self,
        decided: Decisions,
        decisions: Iterable[Decision],
        before: CandidateState | None = None,
    ) -> CandidateState:
        """The state after decisions; only the costs of nodes that they touch are found anew.

        Args:
          decided: all decisions.
          decisions: the last of them.
          before: the state before `decisions`; None where they are all there are.
        """
        state = (before or self._undecided).copy()
        dirty: dict[Node, None] = {}
        values: dict[Value, None] = {}
        for _, _, value, node, _ in decisions:
            if value is not None:
                values[value] = None
            elif node is not None:
                dirty[node] = None
        tilings, shares, touching = state.tilings, state.shares, self.classes.touching
        for value in values:
            tiling = self._tiling(len(value.shape), decided.tiles.get(value, {}))
            if tiling.number != tilings[value].number:
                dirty.update(dict.fromkeys(touching.get(value, ())))
                shares[self._value_at[value]] = tiling.share
            tilings[value] = tiling
        factors, node_costs = decided.factors, self._node_costs
        for node in dirty:
            taken = factors.get(node)
            around, costs = node_costs[node]
            key: tuple[Any, ...] = tuple([tilings[value].number for value in around])
            if taken:
                key = (*taken.items(), *key)
            cost = costs.get(key)
            if cost is None:
                cost = costs[key] = self._node_cost(node, taken or {}, state)
            if state.costs.get(node) is not cost:
                self._record(node, cost, state)
        return state

    def _tiling(self, rank: int, tiles: Mapping[str, int]) -> Tiling:
        kind = rank, *tiles.items()
        known = self._tilings.get(kind)
        if known is None:
            layout = layout_of(tiles, rank)
            replicated = frozenset(a for a, dim in tiles.items() if dim == REPLICATED_DIM)
            share = share_of(tiles, self.mesh)
            numbers = {t.layout: t.number for t in self._tilings.values()}
            number = numbers.get(layout, len(numbers))
            known = self._tilings[kind] = Tiling(
                layout, share, number, _layout_axes(layout), replicated
            )
        return known

    def _record(self, node: Node, cost: NodeCost, state: CandidateState) -> None:
        """Enters the cost of a node into a state."""
        state.costs[node] = cost
        if cost.reshards:
            state.reshards[node] = cost.reshards
        else:
            state.reshards.pop(node, None)
        if cost.pending:
            state.pending[node] = cost.pending
        else:
            state.pending.pop(node, None)
        if node.op is not None:
            state.shares[self._node_at[node]] = cost.work_share
            if cost.operand_shares:
                start = self._operand_at[node]
                state.shares[start : start + len(cost.operand_shares)] = cost.operand_shares
            start = self._results_at.get(node, -1)
            if start >= 0:
                state.shares[start : start + len(cost.result_shares)] = cost.result_shares

    def _node_cost(self, node: Node, factors: Mapping[str, int], state: CandidateState) -> NodeCost:
        """The cost of a node, as it and its values are decided."""
        tilings = state.tilings
        if node.op is None:
            reshards = [
                self._reshard(v, tilings[v].layout, needed)
                for v, needed in self._tied(node, tilings)
            ]
            return NodeCost(reshards, (), 1.0, (), (), ())
        axes: dict[int, tuple[str, ...]] = {}
        share = 1.0
        for axis, factor in factors.items():
            axes[factor] = (*axes.get(factor, ()), axis)
            if splits(node, factor):
                share /= self.mesh[axis]
        rule, count = node.rule, len(node.rule.operands)
        reshards, operands, result_axes = [], [], []
        results: list[float] = []
        for value, dims in zip(node.values[:count], rule.operands, strict=True):
            needed = tuple([axes.get(f, ()) for f in dims])
            if node in self._operand_at:
                operands.append(self._part(needed))
            if value in tilings and (have := tilings[value].layout) != needed:
                reshards.append(self._reshard(value, have, needed))
        pending = [a for f, names in axes.items() if f in rule.monoids for a in names]
        for value, dims in zip(node.values[count:], rule.results, strict=True):
            made = tuple([axes.get(f, ()) for f in dims])
            result_axes.append(_layout_axes(made))
            share_made = kept = self._part(made)
            if value in tilings and (have := tilings[value].layout) != made:
                sent = self._transfer(value, made, have)
                # A sum is scattered to where slices alone lead.
                if not pending or sent.seconds:
                    reshards.append(ReshardRequest(value, have, NO_AXES, sent, True))
                if pending or sent.seconds or self._cut(value, tilings[value].share / share_made):
                    kept = tilings[value].share
            results += share_made, kept
        result_axes.append(frozenset(factors))
        return NodeCost(
            reshards, tuple(pending), share, tuple(operands), tuple(result_axes), tuple(results)
        )

    def _cut(self, value: Value, share: float) -> bool:
        """True if fusion writes a slice, this share of a result, to memory before its reads."""
        readers = self._readers.get(value, 1)
        return readers - 1 > (readers + 1) * share

    def _reshard(self, value: Value, have: Layout, target: Layout) -> ReshardRequest:
        """The request for a value in layout `target` where it lies in layout `have`."""
        slices = _layout_axes(target) - _layout_axes(have)
        return ReshardRequest(value, target, slices, self._transfer(value, have, target), False)

    def _tied(self, node: Node, tilings: Mapping[Value, Tiling]) -> Iterable[tuple[Value, Layout]]:
        """Yields the values in and around a loop that disagree, with the layouts that they need."""
        skips = [sum(f < 0 for f in dims) for dims in node.dims]
        around = node.values[:2] if node.owner is not None else node.values[::-1][:2]
        pairs = [(around, skips[:2] if node.owner is not None else skips[::-1][:2])]
        if len(node.values) == 4:
            pairs.append(((node.values[2], node.values[1]), [skips[2], skips[1]]))
        for (source, target), (skip, other) in pairs:
            if source not in tilings or target not in tilings:
                continue
            needed = ((),) * skip + tilings[target].layout[other:]
            if tilings[source].layout != needed:
                yield source, needed

    def _part(self, layout: Layout) -> float:
        share = 1.0
        for axes in layout:
            for axis in axes:
                share /= self.mesh[axis]
        return share

    def _collectives(self, state: CandidateState) -> Exchanges:
        """Every collective that would be left, with where its members run."""
        found: Exchanges = []
        sliced: dict[Value, dict[Node, frozenset[str]]] = {}
        uses: dict[tuple[Value, Layout], list[np.ndarray]] = {}
        read = self.def_use.uses
        moved: set[Value] = set()
        for node, requests in state.reshards.items():
            for value, target, slices, transfer, is_result in requests:
                if slices:
                    sliced.setdefault(value, {})[node] = slices
                if transfer.seconds:
                    if is_result:
                        found.append((transfer, self._def_places(value)))
                        moved.add(value)
                    else:
                        self._add_use(uses, value, target, read[value][node], state)
        for (value, target), (first, last) in uses.items():
            transfer = self._transfer(value, state.tilings[value].layout, target)
            at = self.def_use.defined[value]
            found.append((transfer, (first, at, first, last, self.def_use.turns[value])))
        reductions = PendingReductions(self.def_use, state, sliced)
        for node, axes in state.pending.items():
            for value in node.values[len(node.rule.operands) :]:
                if value in state.tilings:
                    reductions.follow(value, axes)
        for (total, axes), leaves in reductions.terms.items():
            value = total if len(leaves) > 1 else leaves[0]
            scattered = NO_AXES if value in moved else reductions.scattered(value, axes)
            made = reductions.made(value)
            transfer = self._reduction(value, axes, scattered, made)
            found.append((transfer, self._def_places(value)))
        return found

    def _def_places(self, value: Value) -> MemberPlaces:
        """The places of an exchange that begins as soon as its value is made."""
        found = self._places_of_def.get(value)
        if found is None:
            at, first = (
                self.def_use.defined[value],
                np.full(len(self.classes.members[value]), self.def_use.end),
            )
            for early, _ in self.def_use.uses.get(value, {}).values():
                np.minimum(first, early, out=first)
            found = self._places_of_def[value] = (
                at,
                at,
                first,
                at,
                self.def_use.times[np.maximum(at, 0)],
            )
        return found

    def _add_use(
        self,
        uses: dict[tuple[Value, Layout], list[np.ndarray]],
        value: Value,
        target: Layout,
        read: list[np.ndarray],
        state: CandidateState,
    ) -> None:
        """Notes who wants a value in a layout; a whole view is a view of the whole."""
        (first, last), tilings = read, state.tilings
        while value in self.def_use.view_of and not any(target):
            source, at = self.def_use.view_of[value]
            if source not in tilings or tilings[source].axes != tilings[value].axes:
                break
            count = len(self.classes.members[source])
            early, late = np.full(count, NEVER), np.full(count, -1)
            np.minimum.at(early, at, first)
            np.maximum.at(late, at, last)
            value, first, last, target = source, early, late, ((),) * source.ndim
        known = uses.get((value, target))
        if known is None:
            uses[value, target] = [first, last]
        else:
            known[0] = np.minimum(known[0], first)
            known[1] = np.maximum(known[1], last)

    def _transfer(self, value: Value, source: Layout, target: Layout) -> Exchange:
        """The exchange that brings a value from one layout to another."""
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
        self,
        value: Value,
        pending: tuple[str, ...],
        scattered: frozenset[str],
        made: frozenset[str],
    ) -> Exchange:
        """The exchange that sums a value over the pending axes, some of them scattered."""
        key = value, pending, scattered, made
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
            ("reduce_scatter", tuple(a for a in pending if a in scattered)),
            ("all_reduce", tuple(a for a in pending if a not in scattered)),
        ):
            if axes:
                wire = self._collective(name, axes, nbytes)
                seconds += wire.seconds
                levels.update(dict.fromkeys(wire.levels))
                nbytes *= self._part((axes,)) if name == "reduce_scatter" else 1.0
        known = self._reduced[key] = Exchange(seconds, tuple(levels), 0.0)
        return known


def _layout_axes(layout: Layout) -> frozenset[str]:
    """The axes of a layout."""
    return frozenset([a for axes in layout for a in axes])
