"""Planted bad tables: each is refused, and its cells are named."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from troupe.partitioning import pipelines as pp

from .random_tables import random_table

KINDS = ("missing", "early", "twice", "two at once", "device", "part", "circle", "link", "memory")
SEEDS = range(15)


def good(chooser):
    """A table that is right, and its edges."""
    name = chooser.choice([*pp.SCHEDULES])
    devices = chooser.choice([2, 3, 4])
    return pp.named_schedule(name, devices, devices * chooser.choice([2, 3]))


def places(table):
    return [
        (step, device, cell)
        for step, row in enumerate(table.cells)
        for device, cell in enumerate(row)
        if cell is not None
    ]


def remade(table, found):
    return pp.PipelineTable.of(table.placement, table.microbatches, found)


def refused(table, edges, *named, **bounds):
    """Asserts that a table is refused, and that the message names all of these."""
    told = "\n".join(pp.faults(table, edges, **bounds))
    for name in named:
        assert re.search(rf"(?<!\w){re.escape(str(name))}(?!\w|\.\d)", told), f"{name}: {told}"
    with pytest.raises(ValueError, match=re.escape(told.split("\n")[0])):
        pp.check_table(table, edges, **bounds)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_bad_tables_are_refused(kind, seed):
    chooser = random.Random(f"{kind} {seed}")
    table, edges = good(chooser)
    pp.check_table(table, edges, hops=1)
    found = places(table)
    step, device, cell = one = chooser.choice(found)
    rest = [other for other in found if other != one]
    if kind == "missing":
        refused(remade(table, rest), edges, cell)
    elif kind == "early":
        # Moved before, or beside, one of the values that it reads.
        reading = [other for other in found if [*other[2].sources(edges)]]
        step, device, cell = one = chooser.choice(reading)
        value = table.source(cell, chooser.choice([*cell.sources(edges)]))
        made = table.step_of[value]
        rows = [[*row] for row in table.cells]
        if table.placement[value.segment] == table.placement[cell.segment]:
            rows[made][device], rows[step][device] = cell, value
        else:
            rows[step][device] = None
            rows.insert(made + 1, [cell if d == device else None for d in range(table.devices)])
            merged = [b or a for a, b in zip(rows[made], rows[made + 1], strict=True)]
            if rows[made][device] is None:
                rows[made : made + 2] = [merged]
            else:
                rows[made], rows[made + 1] = rows[made + 1], rows[made]
        bad = pp.PipelineTable(table.placement, table.microbatches, tuple(map(tuple, rows)))
        refused(bad, edges, cell, value)
    elif kind == "twice":
        refused(remade(table, [*found, (table.steps, device, cell)]), edges, cell, "twice")
    elif kind == "two at once":
        other = chooser.choice(rest)[2]
        with pytest.raises(ValueError, match=f"{cell} and {other} are both at step {step} on"):
            remade(table, [*found, (step, device, other)])
    elif kind == "device":
        other = (device + chooser.randrange(1, table.devices)) % table.devices
        moved = [*rest, (table.steps, other, cell)]
        refused(remade(table, moved), edges, f"{cell} at step {table.steps} on device {other}")
    elif kind == "part":
        # A backward pass that is whole and in parts, or in one part alone.
        parts = {"backward": "inputs", "inputs": "backward", "weights": "backward"}
        backward = [other for other in found if other[2].work != "forward"]
        _, device, cell = chooser.choice(backward)
        part = cell._replace(work=parts[cell.work])
        refused(remade(table, [*found, (table.steps, device, part)]), edges, cell, part)
    elif kind == "circle":
        planted_circle(table, edges, chooser)
    elif kind == "link":
        if table.devices < 4:
            table, edges = pp.named_schedule("gpipe", 4, 4)
        swapped = {0: 0, 1: 2, 2: 1, 3: 3}
        bad = pp.PipelineTable(
            tuple(tuple(swapped[d] for d in devices) for devices in table.placement),
            table.microbatches,
            tuple((row[0], row[2], row[1], row[3]) for row in table.cells),
        )
        pp.check_table(bad, edges, hops=2)
        refused(bad, edges, "device 0", "device 2", hops=1)
    else:
        peak = pp.peak_live(table, edges)
        limits = [*peak]
        limits[device] -= 1
        pp.check_table(table, edges, limits=peak)
        refused(table, edges, f"device {device} holds {peak[device]:g}", limits=limits)


def planted_circle(table, edges, chooser):
    """Two cells of a device are exchanged, of which one waits, over others, for the other."""
    orders = [[*order] for order in table.orders()]
    order = orders[chooser.randrange(table.devices)]
    microbatch = chooser.randrange(table.microbatches)
    own = [i for i, cell in enumerate(order) if cell.microbatch == microbatch]
    backward = [i for i in own if order[i].work in ("backward", "inputs")]
    first = next(i for i in own if order[i].segment == order[backward[-1]].segment)
    order[first], order[backward[-1]] = order[backward[-1]], order[first]
    with pytest.raises(ValueError, match="wait for one another in a circle") as caught:
        pp.lay_out(orders, table.placement, table.microbatches, edges)
    # Around the circle each waits for the next, and each wait is one that there is.
    waits = re.findall(
        r"(\S+) waits for (\S+), which (device \d+|it) (runs|reads)", str(caught.value)
    )
    assert [wait[0] for wait in waits[1:] + waits[:1]] == [wait[1] for wait in waits]
    for cell, source, who, _ in waits:
        one, other = pp.parse_cell(cell), pp.parse_cell(source)
        if who == "it":
            assert any(other in makers for makers in one.sources(edges))
        else:
            mine = orders[int(who.removeprefix("device "))]
            assert mine.index(one) == mine.index(other) + 1


def test_a_circle_is_told():
    cells = [
        [pp.parse_cell(t) for t in line.split()]
        for line in ("F0.0 B0.0 F0.1 B0.1", "F1.1 F1.0 B1.0 B1.1")
    ]
    message = (
        "B0.0 waits for B1.0, which it reads; B1.0 waits for F1.0, which device 1 runs before it; "
        "F1.0 waits for F1.1, which device 1 runs before it; F1.1 waits for F0.1, which it reads; "
        "F0.1 waits for B0.0, which device 0 runs before it"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        pp.lay_out(cells, [(0,), (1,)], 2, pp.chain(2))
    with pytest.raises(ValueError, match=r"F1\.0 reads F0\.0, which no device makes"):
        pp.lay_out([[], [pp.parse_cell("F1.0")]], [(0,), (1,)], 1, pp.chain(2))


def test_segments_on_all_devices_run_in_one_step():
    edges = pp.chain(3)
    table = pp.interlaced(pp.gpipe(2, 2), edges, [0])
    pp.check_table(table, edges)
    found = places(table)
    cell = pp.PipelineCell(0, 1, "forward")
    rest = [one for one in found if one[2] != cell]
    step = table.step_of[cell]
    with pytest.raises(ValueError, match=rf"F0\.1 at step {step} does not run on device 1"):
        pp.check_table(remade(table, [*rest, (step, 0, cell)]), edges)
    apart = [*rest, (step, 0, cell), (table.steps, 1, cell)]
    with pytest.raises(ValueError, match=rf"F0\.1 runs at steps {step} and {table.steps}; the dev"):
        pp.check_table(remade(table, apart), edges)


def test_other_faults_are_named():
    table = pp.gpipe(4, 4)
    with pytest.raises(ValueError, match="the table is of 4 devices, the axis has 8"):
        pp.check_table(table, devices=8)
    with pytest.raises(ValueError, match="places 4 segments, the edges have 5"):
        pp.check_table(table, pp.chain(5))
    with pytest.raises(ValueError, match="3 limits of memory for 4 devices"):
        pp.check_table(table, limits=[1, 2, 3])
    edges = pp.forward_chains([[0, 1], [2, 3]])
    with pytest.raises(ValueError, match=r"B1\.3 at step .*: there is no backward of segment 1"):
        pp.check_table(table, edges)
    one = pp.PipelineTable(((0,),), 1, ((pp.PipelineCell(0, 0, "sideways"),),))
    with pytest.raises(ValueError, match="step 0 on device 0 does 'sideways'; works are forward"):
        pp.check_table(one)
    shortened = pp.PipelineTable(table.placement, 4, table.cells[:3])
    with pytest.raises(ValueError, match=r"and \d+ more faults"):
        pp.check_table(shortened)


def test_edges_are_checked():
    forward, backward = (0, "forward"), (0, "backward")
    with pytest.raises(ValueError, match="backward of segment 0 reads forward of segment 0, which"):
        pp.Edges(((backward, (forward,)),))
    with pytest.raises(ValueError, match=r"in a circle: forward of segment 0 reads backward of"):
        pp.Edges(((forward, (backward,)), (backward, (forward,))))
    with pytest.raises(ValueError, match="name a task twice"):
        pp.Edges(((forward, ()), (forward, ())))
    with pytest.raises(ValueError, match="not of 'weights' of segment 0"):
        pp.Edges((((0, "weights"), ()),))
    with pytest.raises(ValueError, match="a chain without segments"):
        pp.forward_chains([[0], []])


@settings(max_examples=30, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.integers(1, 4),
    st.sampled_from([pp.chain(4), pp.chain(6), pp.stage_chains(2, 3), pp.stage_chains(2, 2)]),
    st.integers(1, 4),
)
def test_tables_that_can_run_are_let_through(chooser, devices, edges, microbatches):
    """Any order that the edges allow passes, is read back, and is no quicker in steps."""
    table = random_table(chooser, devices, edges, microbatches)
    pp.check_table(table, edges, devices=devices, limits=pp.peak_live(table, edges))
    assert pp.parse_table(str(table)) == table
    assert pp.lay_out(table.orders(), table.placement, microbatches, edges) == table
    costs = [pp.SegmentCost(chooser.random(), chooser.random()) for _ in range(edges.segments)]
    quickest = pp.dependency_time(table, edges, costs).total
    assert quickest <= pp.lockstep_time(table, edges, costs).total + 1e-9
    busiest = max(sum(costs[c.segment].time(c.work) for c in o) for o in table.orders())
    assert quickest >= busiest - 1e-9
