"""On eight devices every schedule gives the results of the unpartitioned step.

Two steps are taken, so that the state of the second comes sharded from the first. Each model is run
under the strongest schedule and another of those that differ from model to model; with
TROUPE_FULL=1 in the environment, under all of them.
"""

import collections
import functools
import os

import jax
import numpy as np
import pytest

from troupe import partitioning as pt
from troupe.agents import examples
from troupe.partitioning import models

from ...results import assert_equal_results, raw

TOLERANCE = 1e-5  # Of the norm of each float32 output.

#: Mesh sizes by name, and what a schedule begins with there.
MESHES = {
    "8": ({"data": 8}, ""),
    "1x8": ({"data": 1, "model": 8}, ""),
    "4x2": ({"data": 4, "model": 2}, ""),
    "2x4": ({"data": 2, "model": 4}, ""),
    "2x2x2": ({"replica": 2, "data": 2, "model": 2}, "batch:replica,"),
}

#: Every model as it comes, what a transformer may be besides, and sizes that do not divide.
MODELS = {name: (name, {}) for name in examples.NAMES} | {
    "mlp adam": ("mlp", {"num_layers": 3, "bias": True, "optimizer": "adam", "clip": 0.1}),
    "transformer": (
        "transformer",
        {"padding": True, "dropout": 0.1, "optimizer": "adam", "clip": 0.1},
    ),
    "transformer tied rotary": (
        "transformer",
        {"tied": True, "rotary": True, "fused_qkv": True, "optimizer": "adam", "clip": 0.1},
    ),
    "transformer post-norm scan": (
        "transformer",
        {
            "num_layers": 2,
            "scan": True,
            "pre_norm": False,
            "dropout": 0.1,
            "typed_key": True,
            "checkpoint": "dots",
            "optimizer": "adam",
        },
    ),
    "transformer checkpoint": ("transformer", {"num_layers": 2, "checkpoint": "nothing"}),
    "uneven mlp": ("mlp", {"batch": 24, "width": 6, "hidden": 10, "optimizer": "adam"}),
    "uneven transformer": (
        "transformer",
        {"batch": 8, "length": 5, "vocabulary": 27, "width": 18, "num_heads": 3, "hidden": 22},
    ),
    "uneven residual_net": ("residual_net", {"width": 6, "classes": 5, "groups": 3}),
    "uneven lstm": ("lstm", {"length": 5, "features": 3, "hidden": 10}),
    "uneven experts": ("experts", {"experts": 3, "width": 6, "length": 5, "hidden": 10}),
    "uneven dqn": ("dqn", {"hidden_sizes": (10,), "actions": 3, "batch_size": 24}),
    "uneven ppo": ("ppo", {"hidden_sizes": (6,), "actions": 3, "rollout_length": 5}),
}


def schedules(model, mesh):
    """The schedules of a model that fit the axes of a mesh."""
    name, sizes = MODELS[model]
    axes, prefix = MESHES[mesh]
    found = []
    for schedule in examples.make(name, **sizes).schedules:
        if "model" in axes or "model" not in schedule:
            found.append(prefix + schedule if "batch:data" in schedule else schedule)
    return found


STRONGEST = ("4x2", "batch:data,megatron:model,zero3:data")


def tactics(case):
    """The schedule of a case as it is on other meshes."""
    mesh, schedule = case
    return schedule.removeprefix(MESHES[mesh][1])


def parameters():
    """All cases, or of each model the strongest and the one that the fewest models before have."""
    seen = collections.Counter()
    for model in MODELS:
        cases = [(mesh, schedule) for mesh in MESHES for schedule in schedules(model, mesh)]
        others = [case for case in cases if case != STRONGEST]
        if "TROUPE_FULL" not in os.environ:
            others = [min(others, key=lambda case: (seen[tactics(case)], seen[case[0]]))]
            seen.update((tactics(others[0]), others[0][0]))
        for case in (STRONGEST, *others):
            yield model, *case


@functools.cache
def reference(model):
    """The example, its arguments, and the results of two unpartitioned steps."""
    name, sizes = MODELS[model]
    example = examples.make(name, **sizes)
    state, batch = models.mid_training(example)
    update = jax.jit(example.update)
    first = update(state, batch)
    second = update(first[0], batch)
    return example, (state, batch), jax.device_get((raw(first), raw(second)))


def check(model, mesh, schedule):
    """Two steps on the mesh against two unpartitioned ones."""
    example, (state, batch), wanted = reference(model)
    axes, _ = MESHES[mesh]
    step = pt.partition(example.update, pt.Mesh(axes), pt.parse_schedule(schedule))
    first = step(state, batch)
    second = step(first[0], batch)
    assert_equal_results(jax.device_get((raw(first), raw(second))), wanted, TOLERANCE)


@pytest.mark.parametrize(("model", "mesh", "schedule"), list(parameters()))
def test_results_are_those_of_the_unpartitioned_step(model, mesh, schedule):
    check(model, mesh, schedule)


def test_half_precision():
    example = models.make("transformer", dtype="bfloat16", optimizer="adam")
    arguments = models.mid_training(example)
    mesh, schedule = STRONGEST
    step = pt.partition(example.update, pt.Mesh(MESHES[mesh][0]), pt.parse_schedule(schedule))
    got, wanted = step(*arguments), jax.jit(example.update)(*arguments)
    # Activations carry 8 bits, and partial sums are rounded to them before they meet.
    assert_equal_results(jax.device_get(got), jax.device_get(wanted), tolerance=2e-2)


@pytest.mark.parametrize("typed", [False, True])
def test_random_values_are_identical_where_they_are_tiled(typed):
    def draw(key, x):
        keys = jax.random.split(key, 4)
        bits = jax.random.bits(keys[0], (16, 8), "uint32")
        noise = jax.random.normal(keys[1], (16, 8))
        coins = jax.random.bernoulli(keys[2], 0.3, (16, 8))
        shuffled = jax.random.permutation(keys[3], 16)
        return pt.tag(bits, "bits"), pt.tag(noise, "noise"), x * coins, shuffled, keys

    key = jax.random.key(3) if typed else jax.random.PRNGKey(3)
    x = np.ones((16, 8), np.float32)
    schedule = [
        pt.Manual("rows", {"bits": 0, "noise": 0, "x": 0}, axis="data"),
        pt.Manual("columns", {"bits": 1, "noise": 1, "x": 1}, axis="model"),
    ]
    step = pt.partition(draw, pt.Mesh({"data": 4, "model": 2}), schedule)
    specs = step.plan(key, x).output_shardings
    assert [tuple(spec) for spec in specs[:3]] == [("data", "model")] * 3
    for a, b in zip(raw(step(key, x)), raw(jax.jit(draw)(key, x)), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
