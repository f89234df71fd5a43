"""A gradient step that a device has no memory for is refused, with a schedule that fits."""

import dataclasses

import pytest

from troupe import partitioning as pt
from troupe.agents.dqn import DQNBuilder, DQNConfig
from troupe.agents.programs import dispatch, planning
from troupe.agents.programs.placement import Partition
from troupe.agents.replay.shapes import sample_shapes
from troupe.environments import make, make_spec
from troupe.partitioning.simulator.presets import get_device


@pytest.fixture(scope="module")
def step():
    """An update of many parameters, and the shapes of its batch."""
    builder = DQNBuilder(DQNConfig(hidden_sizes=(512, 512), batch_size=8))
    with make("CartPole-v1", seed=0, num_envs=1) as environment:
        spec = make_spec(environment)
    networks = builder.make_networks(spec)
    samples = sample_shapes(builder.make_replay_spec(spec), spec, ())
    return builder.make_update(networks, spec), dispatch.on_device(samples)


def partition(schedule, memory_bytes=None, axes="data=8"):
    device = get_device("h100")
    if memory_bytes is not None:
        device = dataclasses.replace(device, memory_bytes=memory_bytes)
    return Partition(pt.parse_mesh(axes), pt.parse_schedule(schedule), device=device)


def peak(step, schedule):
    planned = planning.plan_update(step[0], partition(schedule), step[1])
    return planned.plan.steps[-1].simulation.peak_memory_bytes


def test_a_step_that_fits_is_bound(step):
    whole = peak(step, "batch:data")
    spread = planning.spread_update(step[0], partition("batch:data", whole), step[1])
    assert spread.step.plan.steps[-1].simulation.fits
    close = int(whole / 1.1)  # Within the error of predictions: it may fit.
    planning.spread_update(step[0], partition("batch:data", close), step[1])


def test_one_that_does_not_is_refused_with_one_that_does(step):
    whole, sharded = peak(step, "batch:data"), peak(step, "batch:data,zero3:data")
    assert sharded < 0.8 * whole
    memory = int(whole / 1.2)
    with pytest.raises(ValueError, match=r"it needs .* of each device's") as caught:
        planning.spread_update(step[0], partition("batch:data", memory), step[1])
    (schedule,) = [word for word in str(caught.value).split() if word.startswith("batch:")]
    assert peak(step, schedule) < 1.15 * memory
    planning.spread_update(step[0], partition(schedule, memory), step[1])


def test_where_none_does_that_is_said(step):
    with pytest.raises(ValueError, match="no known schedule of this mesh fits"):
        planning.spread_update(step[0], partition("batch:data", 1000), step[1])


def test_decisions_that_were_made_are_taken(step):
    """Those who made them had the devices in view."""
    planned = planning.plan_update(step[0], partition("batch:data"), step[1])
    given = dataclasses.replace(partition("batch:data", 1000), decisions=planned.plan.decisions)
    planning.spread_update(step[0], given, step[1])
