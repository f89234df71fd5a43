"""Every example runs on one device, gives finite numbers, and gives the same ones again."""

import jax
import numpy as np
import pytest

from troupe.agents import examples
from troupe.partitioning import models
from troupe.partitioning.models import handwritten

CASES = [(name, {}) for name in examples.NAMES] + [
    ("transformer", {"fused_qkv": True, "tied": True, "rotary": True}),
    ("transformer", {"pre_norm": False, "dropout": 0.1, "padding": True}),
    ("transformer", {"num_layers": 3, "scan": True, "checkpoint": "dots", "dropout": 0.1}),
    ("transformer", {"dtype": "bfloat16", "typed_key": True, "dropout": 0.1}),
]


@pytest.mark.parametrize(("name", "sizes"), CASES, ids=lambda x: str(x))
def test_runs_and_repeats(name, sizes):
    example = examples.make(name, **sizes)
    state, batch = models.mid_training(example)
    step = jax.jit(example.update)
    first, second = step(state, batch), step(state, batch)
    assert jax.tree_util.tree_structure(first[0]) == jax.tree_util.tree_structure(state)
    for new, old in zip(*map(jax.tree_util.tree_leaves, (first[0], state)), strict=True):
        assert (new.shape, new.dtype) == (old.shape, old.dtype)
    for a, b in zip(*map(jax.tree_util.tree_leaves, (first, second)), strict=True):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.isfinite(np.asarray(a, np.float64)).all()
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("name", models.CATALOGUE)
def test_every_batch_leaf_begins_with_the_batch(name):
    example = models.make(name)
    for leaf in jax.tree_util.tree_leaves(example.batch_shapes):
        assert leaf.shape[0] % 8 == 0


@pytest.mark.parametrize("name", ["mlp", "transformer", "lstm", "residual_net", "experts"])
def test_descends(name):
    example = models.make(name)
    state, batch = models.mid_training(example)
    step, losses = jax.jit(example.update), []
    for _ in range(20):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < losses[0]


def test_every_parameter_learns():
    for name in models.CATALOGUE:
        # Without rotary positions softmax cancels the keys' bias, whose gradient is then nothing.
        example = models.make(name, **({"rotary": True} if name == "transformer" else {}))
        state, batch = models.mid_training(example)
        new, _ = jax.jit(example.update)(state, batch)
        old, new = (
            jax.tree_util.tree_flatten_with_path(tree["params"])[0] for tree in (state, new)
        )
        for (path, before), (_, after) in zip(old, new, strict=True):
            assert (np.asarray(before) != np.asarray(after)).any(), (name, path)


def test_unknown_names_are_listed():
    with pytest.raises(ValueError, match="there are mlp, transformer"):
        models.make("perceptron")
    with pytest.raises(ValueError, match="has no depth; its fields are batch, num_layers"):
        models.make("mlp", depth=3)


@pytest.mark.parametrize(
    ("model", "zero"), [(None, False), (None, True), ("model", False), ("model", True)]
)
def test_step_written_by_hand_is_the_same_step(model, zero):
    example = models.make("mlp", num_layers=3, optimizer="adam")
    arguments = models.mid_training(example)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))
    step, *_ = handwritten.mlp_step(example, mesh, model, zero)
    got, wanted = jax.jit(step)(*arguments), jax.jit(example.update)(*arguments)
    for a, b in zip(*map(jax.tree_util.tree_leaves, (got, wanted)), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-6)
