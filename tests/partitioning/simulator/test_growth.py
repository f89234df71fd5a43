"""Plans over more devices, of which each holds its part, fit larger models."""

import bisect
import functools

import jax
import pytest

from troupe import partitioning as pt
from troupe.partitioning import models

ZERO3 = "batch:data,zero3:data"
LAYERS = 8
"""Of the largest transformer on one device."""


@functools.cache
def plan(num_layers, devices, schedule=ZERO3):
    """The plan of a transformer's step with Adam, one block of which is computed at a time."""
    example = models.make(
        "transformer",
        **{"num_layers": num_layers, "scan": True, "checkpoint": "nothing", "width": 128},
        **{"length": 32, "batch": 32, "vocabulary": 128, "num_heads": 4, "optimizer": "adam"},
    )
    step = pt.partition(
        example.update, pt.Mesh({"data": devices}), pt.parse_schedule(schedule), donate=("state",)
    )
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(example.state_shapes))
    return step.plan(example.state_shapes, example.batch_shapes), whole


def held(planned):
    """Bytes of parameters and of the optimizer's state on a device."""
    return sum(value.nbytes for value in planned.program.inputs if value.path.startswith("state"))


def peak(num_layers, devices):
    return plan(num_layers, devices)[0].steps[-1].simulation.peak_memory_bytes


def test_a_device_of_eight_holds_an_eighth_of_parameters_and_optimizer():
    planned, whole = plan(LAYERS, 8)
    assert held(planned) == pytest.approx(whole / 8, rel=0.1)
    replicated, _ = plan(LAYERS, 8, "batch:data")
    assert held(replicated) == whole


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_the_largest_transformer_that_fits_grows_with_the_devices(devices):
    memory = peak(LAYERS, 1)
    most = 2 * devices * LAYERS
    largest = bisect.bisect_right(range(most), memory, lo=1, key=lambda n: peak(n, devices)) - 1
    assert 0.9 * devices * LAYERS <= largest < 1.5 * devices * LAYERS
    # Without sharding the same parameters more devices leave it nearly as it was.
    replicated = plan(2 * LAYERS, devices, "batch:data")[0].steps[-1].simulation
    assert replicated.peak_memory_bytes > 0.9 * memory
