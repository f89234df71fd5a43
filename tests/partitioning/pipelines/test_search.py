"""The search for schedules finds those that are known, and none longer than the optimum."""

from __future__ import annotations

import itertools
import random
import sys

import pytest

from troupe.partitioning import pipelines as pp
from troupe.partitioning.pipelines.schedules import repetend, search, solver


@pytest.fixture
def ortools():
    pytest.importorskip("ortools", exc_type=ImportError)


def total(found, edges, costs, link=None):
    """The time of a table that was found; it passes the checks."""
    pp.check_table(found.table, edges, costs=costs)
    return pp.dependency_time(found.table, edges, costs, link).total


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_1f1b_is_found(ortools, stages):
    """The shortest time, and within its memory."""
    costs = pp.equal_costs(stages, forward=1.0, backward=2.0)
    limits = [stages - stage for stage in range(stages)]
    edges = pp.chain(stages)
    for microbatches in (stages, 8, 200):
        found = pp.search_schedule(
            pp.straight(stages), edges, microbatches, costs, limits=limits, effort=5
        )
        assert found.proven
        assert total(found, edges, costs) == (microbatches + stages - 1) * 3
        assert pp.peak_live(found.table, edges) == tuple(limits)
        if microbatches > stages:
            assert (found.period, found.under_way) == (3.0, stages)


@pytest.mark.parametrize("recycled", [False, True])
def test_3f1b_is_found(ortools, recycled):
    costs = pp.equal_costs(9, forward=1.0, backward=2.0)
    edges = pp.stage_chains(3, 3, recycled=recycled)
    found = pp.search_schedule(
        pp.straight(3) * 3, edges, 12, costs, limits=[3, 2, 1] if not recycled else None, effort=5
    )
    known = pp.several_forwards(3, 12, recycled=recycled)
    assert total(found, edges, costs) == pp.dependency_time(known, edges, costs).total
    assert found.proven
    assert found.period == 5.0


def test_gradients_of_weights_fill_bubbles(ortools):
    """As short as zero bubble H1 within its memory, which without a split there is no schedule."""
    edges, costs = pp.chain(3), pp.equal_costs(3)
    found = pp.search_schedule(
        pp.straight(3), edges, 6, costs, limits=[3] * 3, split=True, effort=5
    )
    known = pp.dependency_time(pp.zero_bubble(3, 6), edges, costs).total
    assert total(found, edges, costs) == known
    assert found.proven


def test_a_v_is_filled(ortools):
    """Two segments a device: as the busiest one, with the way to it and back."""
    costs = pp.equal_costs(4)
    found = pp.search_schedule(pp.v_shaped(2), pp.chain(4), 6, costs, effort=5)
    assert found.proven
    assert total(found, pp.chain(4), costs) == 1 + 6 * 6 + 2


def test_segments_on_all_devices_are_placed(ortools):
    costs = pp.equal_costs(4, forward=1.0, backward=2.0)
    placement = [(0, 1), (0,), (1,), (0, 1)]
    found = pp.search_schedule(placement, pp.chain(4), 8, costs, effort=1)
    base = pp.interlaced(pp.one_f_one_b(2, 8), pp.chain(4), [0, 3])
    assert total(found, pp.chain(4), costs) <= pp.dependency_time(base, pp.chain(4), costs).total
    assert found.period == 9.0


@pytest.mark.parametrize("seed", range(4))
def test_no_schedule_is_much_shorter(ortools, seed):
    """At most 1.02 of the optimum, which the solver proves for all cells at once."""
    chooser = random.Random(seed)
    stages = chooser.choice([2, 3])
    costs = [
        pp.SegmentCost(forward=chooser.randint(1, 3), backward=chooser.randint(2, 5))
        for _ in range(stages)
    ]
    edges, limits = pp.chain(stages), [stages - s for s in range(stages)]
    link = chooser.choice([None, lambda *_: 1.0])
    found = pp.search_schedule(
        pp.straight(stages), edges, 5, costs, limits=limits, link=link, effort=5
    )
    problem, unit = search._whole_numbers(pp.straight(stages), edges, costs, limits, False, link)
    direct = solver.solve_cells(problem, problem.cells(5), solver.Solver(20.0))
    assert direct is not None
    assert direct[2]
    assert found.proven
    assert total(found, edges, costs) <= 1.02 * direct[1] * unit
    assert direct[1] >= problem.least_total(5)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("late", [False, True])
def test_warm_up_and_cool_down_fit_the_repetend(ortools, size, late):
    """Whatever runs reads what has arrived, on a device that is free."""
    edges = pp.chain(6)
    costs = [pp.SegmentCost(forward=1 + s % 2, inputs=1, weights=1 + s % 3) for s in range(6)]
    problem, _ = search._whole_numbers(pp.v_shaped(3), edges, costs, None, True, lambda *_: 2.0)
    solving = solver.Solver(5.0)
    found = repetend.solve_repetend(problem, size * problem.least_period, size, solving, late=late)
    assert found is not None
    assert found.warm_up()
    starts = search._completed(problem, found, (found.last + 2) * size + 1, solving)
    ends = {cell: start + problem.time(cell) for cell, start in starts.items()}
    for cell, start in starts.items():
        assert all(start >= ends[value] + link for value, link in problem.reads(cell))
    for device in range(3):
        own = sorted(problem.on(device, starts), key=lambda cell: starts[cell])
        assert all(starts[other] >= ends[one] for one, other in itertools.pairwise(own))
    assert {*starts} == {*problem.cells((found.last + 2) * size + 1)}


def test_memory_bounds_the_search(ortools):
    """With room for fewer micro-batches the time grows, up to one after the other."""
    costs = pp.equal_costs(2, forward=1.0, backward=1.0, kept=1.5, working=0.25)
    edges, times = pp.chain(2), []
    for room in (2, 1):
        limits = [1.5 * room + 0.25, 1.75]
        found = pp.search_schedule(pp.straight(2), edges, 6, costs, limits=limits, effort=5)
        times.append(total(found, edges, costs))
        assert pp.peak_live(found.table, edges, costs)[0] <= limits[0]
    assert times == [14.0, 24.0]
    with pytest.raises(ValueError, match=r"no schedule of 6 micro.* was found within \[1, 1\]"):
        pp.search_schedule(pp.straight(2), edges, 6, costs, limits=[1, 1], effort=1)


def test_times_of_any_size_are_searched(ortools):
    """Fractions are rounded, to a small part of the shortest time."""
    costs = [
        pp.SegmentCost(forward=0.37e-3, backward=0.9e-3),
        pp.SegmentCost(0.41e-3, backward=1e-3),
    ]
    found = pp.search_schedule(pp.straight(2), pp.chain(2), 16, costs, effort=2)
    least = 0.37e-3 + 16 * 1.41e-3 + 0.9e-3
    assert least - 1e-9 <= total(found, pp.chain(2), costs) <= 1.02 * least
    assert found.period == pytest.approx(1.41e-3, rel=0.05)


def test_without_the_solver_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(ImportError, match=r"needs OR-tools: pip install 'troupe\[pipelines\]'"):
        pp.search_schedule(pp.straight(2), pp.chain(2), 4, pp.equal_costs(2))
