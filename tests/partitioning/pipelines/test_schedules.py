"""The named schedules: bubbles, activations and messages are those of the papers' formulas."""

from __future__ import annotations

import collections
import functools
import graphlib
import itertools

import pytest

from troupe.partitioning import pipelines as pp

SIZES = [(p, m) for p in range(1, 9) for m in range(1, 33)]
# Tables are made once for all tests.
gpipe, one_f_one_b, zero_bubble, dualpipe_v, several_forwards = map(
    functools.cache,
    (pp.gpipe, pp.one_f_one_b, pp.zero_bubble, pp.dualpipe_v, pp.several_forwards),
)
COSTS = [(1.0, 1.0, 1.0), (2.0, 3.0, 1.0), (4.0, 5.0, 3.5)]


def costs_of(p, m):
    """One set of times for each size, all of them in turn."""
    return COSTS[(p + m) % len(COSTS)]


def bubble(table, edges, costs):
    """The idle time of each device, all of which are equally busy, and their own time."""
    forward, inputs, weights = costs
    each = pp.equal_costs(table.segments, forward=forward, inputs=inputs, weights=weights)
    timing = pp.dependency_time(table, edges, each)
    assert len(set(timing.busy)) == 1
    assert timing.bubbles == pytest.approx([timing.total / timing.busy[0] - 1] * table.devices)
    return timing.total - timing.busy[0], timing.busy[0]


@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
def test_bubbles_of_gpipe_and_1f1b(make):
    """(p - 1) / m of a stage's own time."""
    for p, m in SIZES:
        idle, own = bubble(make(p, m), pp.chain(p), costs_of(p, m))
        assert idle / own == pytest.approx((p - 1) / m)


@pytest.mark.parametrize("chunks", [2, 3])
def test_bubbles_of_interleaved(chunks):
    """(p - 1) / (v m) of a device's own time."""
    for p, m in SIZES:
        if m % p == 0:
            table = pp.interleaved(p, m, chunks)
            idle, own = bubble(table, pp.chain(p * chunks), costs_of(p, m))
            assert idle / own == pytest.approx((p - 1) / (chunks * m))


def test_bubbles_of_zero_bubble():
    """(p - 1)(F + B - 2W), B of both gradients, once there are as many micro-batches as stages."""
    for p, m in SIZES:
        forward, inputs, weights = costs_of(p, m)
        expected = (p - 1) * (forward + (inputs + weights) - 2 * weights)
        # Of fewer micro-batches there are too few gradients of weights to fill with.
        expected += max(p - m, 0) * weights
        idle, _ = bubble(zero_bubble(p, m), pp.chain(p), costs_of(p, m))
        assert idle == pytest.approx(expected)


def test_bubbles_of_dualpipe_v():
    """(p / 2 - 1)(F&B + B - 3W) on p / 2 devices, where F&B are one work.

    As cells of their own, the forward pass is there for others before the backward pass beside it
    has run, and the bubble is at most that.
    """
    for d, m in SIZES:
        if m >= 2 * d:
            forward, inputs, weights = costs_of(d, m)
            backward = inputs + weights
            expected = (d - 1) * ((forward + backward) + backward - 3 * weights)
            table = dualpipe_v(d, m)
            idle, own = bubble(table, pp.chain(2 * d), costs_of(d, m))
            assert idle <= expected + 1e-9
            at_once = time_at_once(table, pp.chain(2 * d), costs_of(d, m))
            assert at_once - own == pytest.approx(expected)


def time_at_once(table, edges, costs):
    """The time of a table in which a forward cell and the backward cell after it are one work."""
    cost = pp.SegmentCost(*costs)
    work_of, before = {}, collections.defaultdict(set)
    for order in table.orders():
        works = []
        for cell in order:
            if cell.work == "backward" and len(works[-1]) == 1 and works[-1][0].work == "forward":
                works[-1] += (cell,)
            else:
                works.append((cell,))
        work_of |= {cell: work for work in works for cell in work}
        for one, other in itertools.pairwise(works):
            before[other].add(one)
    for cell, work in work_of.items():
        for makers in cell.sources(edges):
            value = table.source(cell, makers)
            if work_of[value] is not work:
                before[work].add(work_of[value])
    ends = {}
    for work in graphlib.TopologicalSorter(before).static_order():
        start = max((ends[one] for one in before.get(work, ())), default=0.0)
        ends[work] = start + sum(cost.time(cell.work) for cell in work)
    return max(ends.values())


@pytest.mark.parametrize("recycled", [False, True])
def test_bubbles_of_3f1b(recycled):
    """(p - 1)(F + B), as with one forward pass: more of them make the share less."""
    for p, m in SIZES:
        # If recycled, the next chain waits for the first micro-batch of the one before.
        if not recycled or m >= p:
            forwards = 2 + m % 2
            table = (
                pp.several_forwards(p, m, forwards, recycled=True)
                if recycled
                else several_forwards(p, m, forwards)
            )
            edges = pp.stage_chains(p, forwards, recycled=recycled)
            costs = COSTS[m % 2]
            forward, inputs, weights = costs
            idle, _ = bubble(table, edges, costs)
            assert idle == pytest.approx((p - 1) * (forward + inputs + weights))


def test_live_activations():
    """The most that each device keeps, in micro-batches of one segment."""
    for p, m in SIZES:
        chain = pp.chain(p)
        stages = range(p)
        assert pp.peak_live(gpipe(p, m), chain) == (m,) * p
        assert pp.peak_live(one_f_one_b(p, m), chain) == tuple(min(m, p - s) for s in stages)
        assert pp.peak_live(zero_bubble(p, m), chain) == (min(m, p),) * p
        threes = several_forwards(p, m, 2 + m % 2)
        assert pp.peak_live(threes, pp.stage_chains(p, 2 + m % 2)) == tuple(
            min(m, p - s) for s in stages
        )
        if m >= 2 * p:
            assert pp.peak_live(dualpipe_v(p, m), pp.chain(2 * p)) == (2 * p + 1,) * p
    assert pp.peak_live(one_f_one_b(4, 8), pp.chain(4)) == (4, 3, 2, 1)


def test_messages():
    """Activations and their gradients between neighbours; v times as many if interleaved."""
    for p, m in ((2, 4), (4, 8), (8, 16)):
        plain = pp.messages(one_f_one_b(p, m), pp.chain(p))
        assert len(plain) == 2 * m * (p - 1)
        assert {one.target - one.source for one in plain} == {1, -1}
        for v in (2, 3):
            sent = pp.messages(pp.interleaved(p, m, v), pp.chain(v * p))
            assert len(sent) == 2 * m * (v * p - 1)
        # Of a V two neighbouring segments share the last device.
        assert len(pp.messages(dualpipe_v(p, m), pp.chain(2 * p))) == 4 * m * (p - 1)


@pytest.mark.parametrize("name", pp.SCHEDULES)
def test_named_schedules_pass_the_checks(name):
    for devices, microbatches in ((1, 2), (2, 4), (3, 6), (4, 8), (4, 12), (8, 16)):
        table, edges = pp.named_schedule(name, devices, microbatches)
        pp.check_table(table, edges, devices=devices, hops=1)
        timing = pp.lockstep_time(table, edges, pp.equal_costs(table.segments))
        assert (
            timing.total >= pp.dependency_time(table, edges, pp.equal_costs(table.segments)).total
        )


def test_what_cannot_be_made_is_said():
    with pytest.raises(ValueError, match=r"no schedule '2f2b'; there are gpipe, 1f1b"):
        pp.named_schedule("2f2b", 4, 8)
    with pytest.raises(ValueError, match=r"groups of 4 micro-batches.*and 6 are no such groups"):
        pp.interleaved(4, 6, 2)
    with pytest.raises(ValueError, match=r"at least 8 micro-batches, two a device.*there are 7"):
        dualpipe_v(4, 7)
    with pytest.raises(ValueError, match="a pipeline of 0 stages; it needs at least one"):
        gpipe(0, 7)


# -- transformations ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [pp.gpipe, pp.one_f_one_b, pp.zero_bubble])
@pytest.mark.parametrize("whole", [(0,), (0, 5), (2,), (0, 3, 5), (4, 5), (0, 1)])
def test_interlaced(make, whole):
    """Whole steps are added, and no other cell of a device is moved before another."""
    base = make(6 - len(whole), 8)
    table = pp.interlaced(base, pp.chain(6), whole)
    pp.check_table(table, pp.chain(6))
    assert table.steps == base.steps + len(whole) * 2 * 8
    staged = [s for s in range(6) if s not in whole]
    for order, before in zip(table.orders(), base.orders(), strict=True):
        kept = [c for c in order if c.segment in staged]
        assert [(c.microbatch, c.work) for c in kept] == [(c.microbatch, c.work) for c in before]
    assert all(
        message.source == -1
        for message in pp.messages(table, pp.chain(6))
        if message.value.segment in whole
    )


def test_interlaced_embeddings_are_made_when_they_are_read():
    table = pp.interlaced(pp.one_f_one_b(2, 2), pp.chain(4), (0, 3))
    for m in range(2):
        at = table.step_of[pp.PipelineCell(1, m, "forward")]
        assert table.cells[at - 1] == (pp.PipelineCell(0, m, "forward"),) * 2
    with pytest.raises(ValueError, match="of 6 segments 1 run on all devices, which leaves 5"):
        pp.interlaced(pp.gpipe(4, 8), pp.chain(6), [0])
    with pytest.raises(ValueError, match="segment 6 runs on all devices, but there are 6"):
        pp.interlaced(pp.gpipe(4, 8), pp.chain(6), [0, 6])


@pytest.mark.parametrize("name", pp.SCHEDULES)
def test_co_sharded(name):
    """Parts take as long as the segment did, and hold the activations of one part at a time."""
    base, edges = pp.named_schedule(name, 2, 4)
    table, after = pp.co_sharded(base, edges, {1: 4})
    pp.check_table(table, after)
    assert table.segments == base.segments + 3
    assert table.placement[1:5] == (base.placement[1],) * 4
    costs = [pp.SegmentCost()] * base.segments
    parts = [pp.SegmentCost(0.25, 0.25, 0.25, kept=0.0, working=0.25)] * 4
    timing = pp.dependency_time(table, after, [costs[0], *parts, *costs[2:]])
    assert timing.busy == pytest.approx(pp.dependency_time(base, edges, costs).busy)


def test_co_shard_on_one_device():
    """No axis: the parts of a layer in turn, recomputed, hold a part of what the layer would."""
    base = pp.gpipe(1, 1)
    table, edges = pp.co_sharded(base, pp.chain(1), {0: 8})
    assert pp.peak_live(base, pp.chain(1)) == (1.0,)
    part = pp.equal_costs(8, kept=0.0, working=1 / 8)
    assert pp.peak_live(table, edges, part) == (1 / 8,)
    with pytest.raises(ValueError, match="segment 3 of 1 cannot have 2 parts"):
        pp.co_sharded(base, pp.chain(1), {3: 2})
