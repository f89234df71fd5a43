"""Topologies and collectives: placement of axes, and the alpha-beta model."""

import itertools
import statistics

import pytest

from troupe.partitioning.simulator.collectives import (
    KINDS,
    bytes_sent,
    collective_cost,
    permute_seconds,
    wire_bytes,
)
from troupe.partitioning.simulator.presets import default_topology
from troupe.partitioning.simulator.topology import (
    Level,
    Segment,
    Topology,
    spanned,
)

FAST = Level("host", 8, 100e9, 1e-6)
SLOW = Level("network", 4, 10e9, 1e-5)
TWO = Topology((FAST, SLOW))


def test_the_last_axis_lies_innermost():
    placed = TWO.place({"data": 4, "model": 8})
    assert [(s.level.name, s.size) for s in placed["model"]] == [("host", 8)]
    assert [(s.level.name, s.size) for s in placed["data"]] == [("network", 4)]


def test_an_axis_may_span_levels():
    placed = TWO.place({"data": 16, "model": 2})
    assert [(s.level.name, s.size) for s in placed["data"]] == [("host", 4), ("network", 4)]


def test_an_axis_may_be_pinned_to_a_level():
    placed = Topology((FAST, SLOW), {"data": "host"}).place({"data": 8, "model": 4})
    assert [s.level.name for s in placed["data"]] == ["host"]
    assert [s.level.name for s in placed["model"]] == ["network"]


def test_a_mesh_that_is_too_large_is_refused():
    with pytest.raises(
        ValueError, match=r"needs 64 devices and the topology \(host=8, network=4\) holds 32"
    ):
        TWO.place({"data": 64})


def test_a_mesh_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="axis 'data' of size 5"):
        TWO.place({"data": 5})


@pytest.mark.parametrize("device", ["h200", "tpu-v5e", "cpu"])
@pytest.mark.parametrize("count", [1, 8, 48, 512])
def test_default_topologies_hold_what_they_are_made_for(device, count):
    assert default_topology(device, count).num_devices == count


@pytest.mark.parametrize("kind", KINDS)
def test_collectives_cost_nothing_alone_and_more_with_size(kind):
    assert collective_cost(kind, 1e6, []).seconds == 0
    one = [Segment(FAST, 1)]
    assert collective_cost(kind, 1e6, one).seconds == 0
    group = [Segment(FAST, 8)]
    times = [collective_cost(kind, size, group).seconds for size in (1e3, 1e6, 1e9)]
    assert times == sorted(times)
    assert times[0] >= FAST.latency


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("all_gather", 7 / 8),
        ("reduce_scatter", 7 / 8),
        ("all_reduce", 14 / 8),
        ("all_to_all", 7 / 8),
    ],
)
def test_large_collectives_are_bound_by_bandwidth(kind, factor):
    cost = collective_cost(kind, 8e9, [Segment(FAST, 8)])
    assert cost.seconds == pytest.approx(factor * 8e9 / FAST.bandwidth, rel=0.01)
    assert bytes_sent(kind, 8e9, 8) == pytest.approx(factor * 8e9)


def test_small_all_reduces_avoid_the_ring_where_the_library_does():
    group = [Segment(FAST, 8)]
    assert collective_cost("all_reduce", 64, group).algorithm == "tree"
    assert collective_cost("all_reduce", 8e9, group).algorithm == "ring"
    assert collective_cost("all_reduce", 64, group, "gloo").algorithm == "ring"


def _flat(kind, nbytes, mesh, axes, library, sharing=4):
    """Two hosts of four with one card for `sharing` devices."""
    hosts = Topology((Level("host", 4, 1e12, 0.0), Level("cable", 2, 1e8, 0.0, sharing=sharing)))
    placed = hosts.place(mesh)
    return collective_cost(kind, nbytes, spanned(placed, axes), library).seconds


def test_a_flat_ring_crosses_the_link_once_each_way():
    once = 7 / 8 * 1e6 / 1e8
    assert _flat("all_gather", 1e6, {"all": 8}, ["all"], "gloo") == pytest.approx(once)
    assert _flat("all_reduce", 1e6, {"all": 8}, ["all"], "gloo") == pytest.approx(2 * once)


@pytest.mark.parametrize(("kind", "crossing"), [("all_gather", 4 * 7), ("reduce_scatter", 16 + 2)])
def test_ranks_that_alternate_between_hosts_cross_with_every_message(kind, crossing):
    """A ring sends seven times over each of four wires; halving sends the halves there, the
    quarters and eighths at home, and two devices have their last place on the other host."""
    mesh, axes = {"host": 2, "device": 4}, ["device", "host"]
    assert _flat(kind, 1e6, mesh, axes, "gloo") == pytest.approx(crossing / 8 * 1e6 / 1e8, rel=1e-3)
    ordered = _flat(kind, 1e6, mesh, axes[::-1], "nccl")
    assert _flat(kind, 1e6, mesh, axes, "nccl") == pytest.approx(ordered)


def test_rings_beside_each_other_share_the_link():
    mesh = {"host": 2, "device": 4}
    alone = 1e6 / 1e8
    assert _flat("all_reduce", 1e6, mesh, ["host"], "gloo") == pytest.approx(4 * alone)
    assert _flat("all_reduce", 1e6, mesh, ["host"], "gloo", sharing=1) == pytest.approx(alone)
    half = {"host": 2, "pair": 2, "device": 2}
    assert _flat("all_gather", 1e6, half, ["host", "device"], "gloo") == pytest.approx(
        2 * 3 / 4 * 1e6 / 1e8
    )


def test_devices_that_the_mesh_leaves_out_send_nothing():
    hosts = Topology(
        (Level("host", 4, 1e12, 0.0), Level("cable", 2, 1e8, 0.0, sharing=4)), {"data": "cable"}
    )
    (segment,) = hosts.place({"data": 2})["data"]
    assert segment.sharing == 1


def test_rings_of_a_library_use_every_card():
    cards = 7 / 8 * 1e6 / 4 / 1e8
    assert _flat("all_gather", 1e6, {"all": 8}, ["all"], "nccl", sharing=1) == pytest.approx(cards)
    assert _flat("all_gather", 1e6, {"all": 8}, ["all"], "gloo", sharing=1) == pytest.approx(
        4 * cards
    )


def test_what_crosses_the_link_in_other_algorithms():
    # Halving: an eighth of each of four devices, then of the two whose place is over there.
    assert _flat("reduce_scatter", 1e6, {"all": 8}, ["all"], "gloo") == pytest.approx(
        (4 + 2) / 8 * 1e6 / 1e8, rel=1e-3
    )
    # Every device sends four of its eight parts to the other host and is sent as many, in turns.
    turns = 1 + 6435 / 2**15
    assert _flat("all_to_all", 1e6, {"all": 8}, ["all"], "gloo") == pytest.approx(
        turns * 2 * 1e6 / 1e8
    )
    assert _flat("all_to_all", 1e6, {"all": 8}, ["all"], "nccl") == pytest.approx(2 * 1e6 / 1e8)


@pytest.mark.parametrize(("pairs", "kind", "pieces"), [(1, "all_to_all", 1), (4, "all_gather", 2)])
def test_two_that_exchange_whole_messages_take_turns(pairs, kind, pieces):
    """The busier direction of all ways in which the exchanges can begin, and then its answers."""
    exchanges = pairs * pieces
    firsts = [sum(first) for first in itertools.product((0, 1), repeat=exchanges)]
    busy = statistics.mean(2 * max(k, exchanges - k) for k in firsts) / exchanges
    mesh = {"host": 2, "device": 4}
    one_way = pairs * 1e6 / 2 / 1e8
    assert _flat(kind, 1e6, mesh, ["host"], "gloo", sharing=pairs) == pytest.approx(busy * one_way)


#: KiB: milliseconds of a message one way and of one each way, by gloo over 100 Mbit/s.
MESSAGES = {64: (5.39, 10.07), 96: (8.17, 15.39), 128: (10.83, 20.85), 512: (43.7, 86.9)}


@pytest.mark.parametrize("kib", MESSAGES)
def test_large_messages_of_two_that_send_each_other_take_turns(kib):
    level = Level("cable", 2, 100e6 / 8 * 1448 / 1514, 0.0)
    cable = [Segment(level, 2)]
    seconds = [permute_seconds(kib << 10, cable, "gloo", both) for both in (False, True)]
    assert seconds == pytest.approx([1e-3 * ms for ms in MESSAGES[kib]], rel=0.06)
    assert permute_seconds(kib << 10, cable, "nccl", both_ways=True) == seconds[0]


def test_small_messages_go_both_ways_at_once():
    cable = [Segment(Level("cable", 2, 1e7, 0.0), 2)]
    for nbytes in (1 << 10, 1 << 13):
        alone, both = (permute_seconds(nbytes, cable, "gloo", one) for one in (False, True))
        assert both == alone
    # A byte more costs little more.
    assert permute_seconds((1 << 13) + 1, cable, "gloo", True) == pytest.approx(both, rel=1e-3)


def test_on_a_torus_the_outer_level_gets_what_the_inner_one_left():
    segments = [Segment(FAST, 8), Segment(SLOW, 4)]
    cost = collective_cost("all_reduce", 1e9, segments, "torus")
    flat = collective_cost("all_reduce", 1e9, segments, "gloo")
    assert cost.seconds < flat.seconds / 4


def test_sharing_divides_a_link():
    shared = Level("memory", 8, 100e9, 1e-6, sharing=4)
    assert collective_cost("all_gather", 1e9, [Segment(shared, 8)]).seconds == pytest.approx(
        4 * collective_cost("all_gather", 1e9, [Segment(FAST, 8)]).seconds, rel=0.01
    )


def test_an_unknown_collective_is_refused():
    with pytest.raises(ValueError, match="unknown collective 'gossip'"):
        collective_cost("gossip", 1, [Segment(FAST, 8)])


def test_what_crosses_between_hosts_of_a_sum():
    cable = Level("cable", 2, 1e7, 1e-4, sharing=4)
    placed = Topology((Level("host", 4, 1e9, 1e-5), cable)).place({"host": 2, "device": 4})
    both = (*placed["device"], *placed["host"])
    # A ring of all leaves each host once: 2 (n - 1) / n of the array.
    assert wire_bytes("all_reduce", 8e6, both)["cable"] == pytest.approx(14e6)
    # Four sums of a fourth, each between two: as many bytes as the array has.
    assert wire_bytes("all_reduce", 2e6, placed["host"])["cable"] == pytest.approx(8e6)
    assert "cable" not in wire_bytes("reduce_scatter", 8e6, placed["device"])
