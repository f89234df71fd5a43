"""Automatic schedules of steps that the search was not made with, against those of people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from troupe import partitioning as pt
from troupe.partitioning.simulator.simulate import Simulation

from .foreign_steps import STEPS, ForeignStep

#: Two hosts of four devices.
HOSTS = pt.Topology(
    (pt.Level("host", 4, 450e9, 3e-6), pt.Level("network", 2, 25e9, 1e-5, sharing=4))
)
#: What people would write for a mesh; what does not go together with a step is left out.
SCHEDULES = {
    "data=8": ("", "batch:data", "batch:data,zero2:data", "batch:data,zero3:data", "zero3:data"),
    "data=4,model=2": (
        "", "batch:data", "batch:model,batch:data", "batch:data,megatron:model",
        "batch:data,expert:model", "batch:data,embedding:model", "batch:data,zero3:model",
        "batch:data,megatron:model,zero3:data", "batch:model,batch:data,zero3:data",
    ),
}  # fmt: skip
SETTINGS = {
    "data=8": ("data=8", None),
    "data=4,model=2": ("data=4,model=2", None),
    "two hosts": ("data=8", HOSTS),
    "two hosts, two axes": ("data=4,model=2", HOSTS),
}


def _planned(
    step: ForeignStep, mesh: pt.Mesh, schedule: Sequence[pt.Tactic], topology: pt.Topology | None
) -> pt.Plan:
    simulator = pt.Simulator("h200", topology)
    made = pt.partition(step.update, mesh, schedule, donate=("state",), simulate=simulator)
    return made.plan(step.state, step.batch)


def _cost(*given: Any) -> Simulation:
    return _planned(*given).steps[-1].simulation


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", STEPS)
def test_a_search_is_as_good_as_people_are(name: str, setting: str) -> None:
    step = STEPS[name]()
    text, topology = SETTINGS[setting]
    mesh, listed = pt.parse_mesh(text), {}
    for schedule in SCHEDULES[text]:
        try:
            cost = _cost(step, mesh, pt.parse_schedule(schedule), topology)
        except ValueError:
            continue  # A dimension that does not divide, or nothing to split.
        if cost.fits:
            listed[schedule or "whole"] = cost.predicted_seconds.total
    search = pt.Automatic(tuple(mesh.axes), budget=pt.Budget(estimates=100, judged=3))
    found = _cost(step, mesh, [search], topology)
    assert found.fits
    assert found.predicted_seconds.total <= 1.02 * min(listed.values()), listed


@pytest.mark.parametrize("name", STEPS)
def test_a_mesh_is_chosen_for_every_step(name: str) -> None:
    step = STEPS[name]()
    found = pt.choose(lambda mesh, schedule: _planned(step, mesh, schedule, None), 4)
    whole = _cost(step, pt.Mesh({"data": 1}), [], None).predicted_seconds.total
    assert found.best.simulation.predicted_seconds.total <= 1.02 * whole
