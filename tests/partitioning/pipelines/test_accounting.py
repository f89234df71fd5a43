"""Times and memory of tables, against numbers worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

from troupe.partitioning import pipelines as pp
from troupe.partitioning.simulator.presets import get_device

COSTS = (
    pp.SegmentCost(forward=1.0, inputs=2.0, weights=1.0, kept=10.0),
    pp.SegmentCost(forward=2.0, inputs=1.0, weights=3.0, kept=4.0, working=1.0),
)


def read(text):
    return pp.parse_table(f"placement 0=0 1=1\nmicrobatches 2\nstep 0 1\n{text}")


def cell(text):
    found = pp.parse_cell(text)
    assert found is not None
    return found


TABLE = read(
    """0 F0.0 .
       1 F0.1 F1.0
       2 .    B1.0
       3 B0.0 F1.1
       4 .    B1.1
       5 B0.1 ."""
)


def test_times_of_a_table():
    """Each device runs on as soon as it can, or all of them together."""
    timing = pp.dependency_time(TABLE, pp.chain(2), COSTS)
    # Device 1: F1.0 from 1 to 3, B1.0 to 7, F1.1 to 9, B1.1 to 13; then B0.1 takes 3.
    assert timing.ends[cell("B1.0")] == 7.0
    assert timing.starts[cell("B0.0")] == 7.0
    assert timing.total == 16.0
    assert timing.busy == (8.0, 12.0)
    assert timing.bubbles == (1.0, pytest.approx(1 / 3))
    together = pp.lockstep_time(TABLE, pp.chain(2), COSTS)
    assert together.total == 1 + 2 + 4 + 3 + 4 + 3
    assert together.starts[cell("F1.1")] == 7.0
    assert together.busy == timing.busy


def test_links_carry_one_value_at_a_time():
    """Values of one device to another leave one after the other, while the devices go on."""
    edges = pp.chain(2)
    timing = pp.dependency_time(TABLE, edges, COSTS, lambda *_: 5.0)
    # F0.0 ends at 1 and F0.1 at 2; they arrive at 6 and at 11.
    assert timing.starts[cell("F1.0")] == 6.0
    assert timing.starts[cell("B1.0")] == 8.0
    assert timing.starts[cell("F1.1")] == 12.0
    slow = pp.dependency_time(TABLE, edges, COSTS, lambda *_: 20.0)
    assert slow.starts[cell("F1.1")] == 41.0
    links = []
    pp.dependency_time(TABLE, edges, COSTS, lambda *link: links.append(link) or 0.0)
    assert sorted(links) == sorted(
        [(cell("F0.0"), 0, 1), (cell("F0.1"), 0, 1), (cell("B1.0"), 1, 0), (cell("B1.1"), 1, 0)]
    )
    # In steps, a link that nothing is sent over costs nothing.
    together = pp.lockstep_time(TABLE, edges, COSTS, lambda *_: 5.0)
    assert together.total == 17 + 4 * 5


def test_values_for_all_devices_are_one_message():
    edges = pp.chain(3)
    table = pp.interlaced(pp.gpipe(2, 1), edges, [0])
    kinds = [(str(one.value), one.source, one.target) for one in pp.messages(table, edges)]
    assert kinds == [("F0.0", -1, -1), ("F1.0", 0, 1), ("B2.0", 1, 0), ("B1.0", -1, -1)]


def test_live_activations_by_step():
    """Kept from the forward pass to the end of the backward pass, and used while a cell runs."""
    assert pp.live(TABLE, pp.chain(2)) == ((1, 0), (2, 1), (2, 1), (2, 1), (1, 1), (1, 0))
    assert pp.live(TABLE, pp.chain(2), COSTS) == (
        (10, 0), (20, 5), (20, 5), (20, 5), (10, 5), (10, 0),
    )  # fmt: skip
    assert pp.peak_live(TABLE, pp.chain(2), COSTS) == (20, 5)
    # Of a backward pass in two parts they are kept until the second.
    split = pp.parse_table("placement 0=0\nmicrobatches 1\nstep 0\n0 F0.0\n1 I0.0\n2 .\n3 W0.0\n")
    assert pp.live(split, pp.chain(1)) == ((1,), (1,), (1,), (1,))


def test_what_is_not_differentiated_keeps_nothing():
    table, edges = pp.several_forwards(2, 2, 2), pp.stage_chains(2, 2)
    assert [edges.has_backward(segment) for segment in range(4)] == [False, False, True, True]
    assert pp.peak_live(table, edges) == (2, 1)


def test_chains_meet_in_the_loss_or_follow_one_another():
    apart = pp.stage_chains(2, 3).sources
    assert apart[5, "forward"] == ((4, "forward"), (1, "forward"), (3, "forward"))
    assert apart[2, "forward"] == ()
    recycled = pp.stage_chains(2, 3, recycled=True).sources
    assert recycled[5, "forward"] == ((4, "forward"),)
    assert recycled[2, "forward"] == ((1, "forward"),)
    assert recycled[4, "backward"] == ((4, "forward"), (5, "backward"))
    assert (1, "backward") not in recycled


def test_devices_that_share_cores_wait_for_all_of_them():
    """Two devices on one core: rates are those while both work, and one alone has it for itself."""
    device = dataclasses.replace(get_device("h100"), alone=2.0)
    assert device.joint_seconds([4.0, 2.0]) == 3.0
    assert device.joint_seconds([4.0, 0.0]) == 2.0
    assert get_device("h100").joint_seconds([4.0, 2.0]) == 4.0
    shared = pp.lockstep_time(TABLE, pp.chain(2), COSTS, joint=device.joint_seconds)
    # All work is done by one core, one after the other.
    assert shared.total == sum(COSTS[c.segment].time(c.work) for c in TABLE.step_of) / 2
    assert all(end <= shared.total for end in shared.ends.values())
    with pytest.raises(ValueError, match=r"alone of device .* is 0\.5"):
        dataclasses.replace(device, alone=0.5)


def test_every_step_takes_what_all_exchange():
    bare = pp.lockstep_time(TABLE, pp.chain(2), COSTS)
    exchanged = pp.lockstep_time(TABLE, pp.chain(2), COSTS, exchanges=(0.5,) * TABLE.steps)
    assert exchanged.total == bare.total + 0.5 * TABLE.steps
    assert exchanged.busy == bare.busy
