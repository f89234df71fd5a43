"""Tables in text, JSON, words and pictures."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from troupe.partitioning import pipelines as pp


def cell(text):
    found = pp.parse_cell(text)
    assert found is not None
    return found


@st.composite
def tables(draw):
    """Any table that can be written, most of which could not run."""
    devices = draw(st.integers(1, 4))
    some = st.lists(st.integers(0, devices - 1), min_size=1, max_size=devices, unique=True)
    placement = draw(st.lists(some.map(tuple), min_size=1, max_size=5))
    works = st.sampled_from(["forward", "backward", "inputs", "weights"])
    cells = st.builds(pp.PipelineCell, st.integers(0, 40), st.integers(0, 200), works)
    row = st.lists(st.none() | cells, min_size=devices, max_size=devices)
    # Without steps the devices are those of the placement.
    rows = draw(st.lists(row.map(tuple), min_size=1, max_size=6))
    return pp.PipelineTable(tuple(placement), draw(st.integers(1, 300)), tuple(rows))


@settings(deadline=None)
@given(tables())
def test_a_table_is_read_back(table):
    assert pp.parse_table(str(table)) == table
    assert pp.PipelineTable.from_json(json.loads(json.dumps(table.to_json()))) == table
    places = [
        (step, device, one)
        for step, row in enumerate(table.cells)
        for device, one in enumerate(row)
        if one is not None
    ]
    if table.cells[-1].count(None) < table.devices == 1 + max(map(max, table.placement)):
        assert pp.PipelineTable.of(table.placement, table.microbatches, places) == table


def test_a_table_is_printed():
    assert str(pp.one_f_one_b(2, 2)).splitlines() == [
        "placement 0=0 1=1",
        "microbatches 2",
        "step  0     1",
        "0     F0.0  .",
        "1     F0.1  F1.0",
        "2     .     B1.0",
        "3     B0.0  F1.1",
        "4     .     B1.1",
        "5     B0.1  .",
    ]
    whole = pp.interlaced(pp.gpipe(2, 1), pp.chain(3), [0])
    assert str(whole).splitlines()[:4] == [
        "placement 0=0+1 1=0 2=1",
        "microbatches 1",
        "step  0     1",
        "0     F0.0  F0.0",
    ]


def test_an_edited_table_is_read():
    text = "\n placement 0=0\nmicrobatches 1\n\nstep 0\nfirst F0.0\nB0.0-is-next I0.0\nx W0.0\n"
    table = pp.parse_table(text)
    assert table.orders() == ((cell("F0.0"), cell("I0.0"), cell("W0.0")),)
    pp.check_table(table)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "first lines begin with .*, not with nothing"),
        ("placement 0=0\nstep 0", "not with placement, step"),
        ("placement 0=a\nmicrobatches 1\nstep 0", "'0=a' should be '0=' and devices"),
        ("placement 1=0\nmicrobatches 1\nstep 0", "'1=0' should be '0='"),
        ("placement 0=0\nmicrobatches no\nstep 0", "'microbatches no': expected"),
        ("placement 0=0\nmicrobatches 1\nstep 0\n0 G0.0", "cell 'G0.0' is not of the form B2.5"),
        (
            "placement 0=0\nmicrobatches 1\nstep 0\n0 F0.0 F0.0",
            "has 2 cells, not one for each of 1",
        ),
        ("placement 0=0\nmicrobatches 0\nstep 0\n0 F0.0", "0 micro-batches; a table needs"),
        ("placement 0=1\nmicrobatches 1\nstep 0\n0 F0.0", r"segment 0 is placed on devices \[1\]"),
        ("placement 0=0+0\nmicrobatches 1\nstep 0\n0 .", "segment 0 is placed twice"),
    ],
)
def test_what_is_no_table_is_said(text, message):
    with pytest.raises(ValueError, match=message):
        pp.parse_table(text)


def test_two_cells_at_once_are_named():
    places = [(0, 0, cell("F0.0")), (0, 0, cell("F0.1"))]
    with pytest.raises(ValueError, match=r"^F0.0 and F0.1 are both at step 0 on device 0$"):
        pp.PipelineTable.of([(0,)], 2, places)
    with pytest.raises(ValueError, match=r"^F0.0 is on device 2; segments are on 1$"):
        pp.PipelineTable.of([(0,)], 2, [(0, 2, cell("F0.0"))])


def test_a_file_is_read_back(tmp_path):
    table = pp.dualpipe_v(2, 4)
    table.save(tmp_path / "table.json")
    assert pp.PipelineTable.load(tmp_path / "table.json") == table
    with pytest.raises(ValueError, match="no table: cells, placement is missing"):
        pp.PipelineTable.from_json({"microbatches": 2})


def test_tables_are_drawn(tmp_path):
    table, edges = pp.named_schedule("zero-bubble", 4, 4)
    pp.save_table(table, edges, tmp_path / "table.png", link=lambda *_: 0.5)
    assert (tmp_path / "table.png").read_bytes()[:4] == b"\x89PNG"


def test_tables_are_explained():
    table, edges = pp.named_schedule("1f1b", 4, 8)
    lines = pp.explain(table, edges).splitlines()
    assert lines[0] == "4 segments on 4 devices, 8 micro-batches in 22 steps"
    assert lines[1].split() == ["device", "segments", "cells", "idle", "steps", "bubble", "live",
                                "at", "most"]  # fmt: skip
    assert [line.split()[-1] for line in lines[2:6]] == ["4", "3", "2", "1"]
    assert [line.split()[4] for line in lines[2:6]] == ["37.5%"] * 4
    assert lines[6].startswith("48 messages between devices, 0 of them beyond neighbours")
    said = pp.explain_step(table, edges, 6, 1)
    assert said == (
        "B1.0 runs at step 6 on device 1: it reads F1.0 of step 1 and B2.0 of step 5; the device "
        "runs F1.2 before it"
    )
    said = pp.explain_step(table, edges, 4, 1)
    assert said.startswith("device 1 is idle at step 4: its next cell is B1.0 of step 6; it reads")
    assert pp.explain_step(table, edges, 21, 1).endswith("all its cells have run")
    with pytest.raises(ValueError, match="no step 22 on device 1: there are 22 steps"):
        pp.explain_step(table, edges, 22, 1)
