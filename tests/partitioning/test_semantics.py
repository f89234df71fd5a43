"""On eight devices every schedule gives the results of the unpartitioned step.

Two steps are taken, so that the state of the second comes sharded from the first. Set TROUPE_FULL=1 for the
whole cross product of models, schedules and meshes.
"""

import functools
import itertools
import os

import jax
import numpy as np
import pytest

from troupe import partitioning as pt
from troupe.partitioning import examples

TOLERANCE = 1e-5  # Of the norm of each float32 output.

#: Mesh sizes by name, and what a schedule begins with there.
MESHES = {
    "8": ({"data": 8}, ""),
    "1x8": ({"data": 1, "model": 8}, ""),
    "4x2": ({"data": 4, "model": 2}, ""),
    "2x4": ({"data": 2, "model": 4}, ""),
    "2x2x2": ({"replica": 2, "data": 2, "model": 2}, "batch:replica,"),
}

#: Every model as it comes, with what a transformer may be besides, and with sizes that do not divide.
MODELS = {name: (name, {}) for name in examples.CATALOGUE} | {
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
    "uneven dqn": ("dqn", {"hidden": 10, "actions": 3, "batch": 24}),
    "uneven ppo": ("ppo", {"hidden": 6, "actions": 3, "length": 5}),
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


def everything():
    for model, mesh in itertools.product(MODELS, MESHES):
        for schedule in schedules(model, mesh):
            yield model, mesh, schedule


@functools.lru_cache(maxsize=None)
def reference(model):
    """The example, its arguments, and the results of two unpartitioned steps."""
    name, sizes = MODELS[model]
    example = examples.make(name, **sizes)
    state, batch = examples.mid_training(example)
    update = jax.jit(example.update)
    first = update(state, batch)
    second = update(first[0], batch)
    return example, (state, batch), jax.device_get((raw(first), raw(second)))


def raw(tree):
    """Typed keys as their data."""
    return jax.tree_util.tree_map(
        lambda x: (
            jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        ),
        tree,
    )


def assert_equal_results(got, wanted):
    got, wanted = (jax.tree_util.tree_flatten_with_path(tree) for tree in (got, wanted))
    assert got[1] == wanted[1]
    for (path, a), (_, b) in zip(got[0], wanted[0], strict=True):
        where = jax.tree_util.keystr(path)
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), where
        if np.issubdtype(b.dtype, np.floating):
            error, norm = np.linalg.norm(a - b), np.linalg.norm(b)
            assert error <= TOLERANCE * norm, f"{where}: error {error:.3g} of norm {norm:.3g}"
        else:
            np.testing.assert_array_equal(a, b, where)


def check(model, mesh, schedule, **options):
    example, (state, batch), wanted = reference(model)
    axes, _ = MESHES[mesh]
    step = pt.partition(example.update, pt.Mesh(axes), pt.parse_schedule(schedule), **options)
    first = step(state, batch)
    second = step(first[0], batch)
    assert_equal_results(jax.device_get((raw(first), raw(second))), wanted)


@pytest.fixture(autouse=True, scope="module")
def _quick_compiler():
    """Compiles without optimizing: these programs run twice."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
