"""A step cut into segments and micro-batches, and run cell by cell, is the step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.partitioning.decide.sharding import Decisions
from troupe.partitioning.pipelines.execution.interpret import interpret
from troupe.partitioning.pipelines.schedules.named import gpipe, one_f_one_b, zero_bubble
from troupe.partitioning.pipelines.stages.segments import balanced
from troupe.partitioning.pipelines.stages.staging import split_step

from ...results import assert_equal_results
from .steps import cut, doubles, example, graph, wide

MODELS = {
    "mlp": ("mlp", {"num_layers": 3, "optimizer": "adam", "clip": 1.0}),
    "dropout": ("transformer", {"num_layers": 2, "dropout": 0.1, "tied": True, "clip": 1.0}),
    "padding": ("transformer", {"num_layers": 1, "padding": True}),
    "scan": ("transformer", {"num_layers": 2, "scan": True}),
    "vtrace": ("vtrace", {}),
}
SCHEDULES = {"gpipe": gpipe, "1f1b": one_f_one_b, "zero-bubble": zero_bubble}


def check(update: Any, arguments: Any, segments: int, schedule: str, tolerance: float) -> None:
    step = cut(update, arguments, segments, 4)
    found = interpret(step, SCHEDULES[schedule](segments, 4), jax.tree.leaves(arguments))
    wanted = jax.jit(update)(*arguments)
    found = jax.tree.unflatten(jax.tree.structure(wanted), found)
    assert_equal_results(found, wanted, tolerance, least=1e-3)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("model", MODELS)
def test_cells_in_order_are_the_step(model: str, schedule: str) -> None:
    name, sizes = MODELS[model]
    check(*example(name, **sizes), 2, schedule, 2e-5)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_in_double_precision(schedule: str) -> None:
    with doubles(True):
        update, arguments = example("mlp", num_layers=3, optimizer="adam", clip=1.0)
        check(update, wide(arguments), 3, schedule, 1e-12)


def test_each_segment_keeps_to_its_layer() -> None:
    update, arguments = example("mlp", num_layers=4)
    step = cut(update, arguments, 4, 4)
    for segment in range(4):
        for work in ("forward", "backward"):
            given = [v.path for v in step.cells[segment, work].given if "params" in v.path]
            assert given
            assert all(f"layer_{segment}/" in path for path in given)
    # Only activations of the width cross, one each way.
    for segment in range(1, 4):
        (read,) = step.cells[segment, "forward"].read
        assert read.shape == (4, 8)


def test_gradients_of_weights_are_work_of_their_own() -> None:
    update, arguments = example("mlp", num_layers=3)
    step = cut(update, arguments, 3, 4)
    inputs, weights = step.cells[1, "inputs"], step.cells[1, "weights"]
    assert [v.shape for v in weights.added] == [(8, 16), (16, 8)]
    assert not inputs.added
    assert not weights.made
    whole = step.cells[1, "backward"]
    assert len(inputs.program.ops) + len(weights.program.ops) == len(whole.program.ops)
    # Behind the first segment nobody asks for a gradient.
    assert not step.cells[0, "inputs"].program.ops


def test_what_sums_data_alone_is_prepared() -> None:
    update, arguments = example("transformer", padding=True)
    step = cut(update, arguments, 2, 4)
    assert [op.outputs[0].shape for op in step.dependence.prepared] == [()]


def test_groups_are_as_even_as_can_be() -> None:
    times, crossing = np.array([1.0, 1, 1, 1, 4]), np.array([9.0, 9, 9, 1, 0])
    assert balanced(times, crossing, 2) == [4, 5]
    assert balanced(np.ones(6), np.array([9.0, 1, 9, 9, 1, 0]), 2) == [3, 6]
    # A twentieth of the time is given for fewer bytes.
    assert balanced(np.array([1.0, 0.04, 1]), np.array([9.0, 1, 0]), 2) == [2, 3]


def norm_over_the_batch(state: Any, batch: Any) -> Any:
    def loss(w: Any) -> Any:
        h = batch["x"] @ w["a"]
        h = (h - h.mean(0)) / (h.std(0) + 1e-3)
        return jnp.mean((h @ w["b"] - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(state["w"])
    return {"w": jax.tree.map(lambda w, g: w - 0.1 * g, state["w"], grads)}, value


def weighted_unevenly(state: Any, batch: Any) -> Any:
    def loss(w: Any) -> Any:
        h = jnp.tanh(batch["x"] @ w["a"]) @ w["b"]
        weight = jnp.abs(h)
        return jnp.sum(weight * (h - batch["y"]) ** 2) / jnp.sum(weight)

    value, grads = jax.value_and_grad(loss)(state["w"])
    return {"w": jax.tree.map(lambda w, g: w - 0.1 * g, state["w"], grads)}, value


@pytest.mark.parametrize("update", [norm_over_the_batch, weighted_unevenly])
def test_rows_that_mix_are_refused(update: Any) -> None:
    state = {"w": {"a": jnp.ones((4, 8)), "b": jnp.ones((8, 4))}}
    batch = {"x": jnp.ones((8, 4)), "y": jnp.ones((8, 4))}
    with pytest.raises(ValueError, match=r"reduce_sum at test_stages.py:\d+ mixes the rows"):
        cut(update, (state, batch), 2, 4)


def test_more_segments_than_products() -> None:
    update, arguments = example("mlp", num_layers=2)
    with pytest.raises(ValueError, match="5 segments, but the step can be cut into 4 at most"):
        cut(update, arguments, 5, 4)


def test_micro_batches_that_do_not_divide() -> None:
    update, arguments = example("mlp", num_layers=2)
    with pytest.raises(ValueError, match=r"batch/x \[16, 8\].*16 rows.* 3 micro-batches"):
        cut(update, arguments, 2, 3)
    decisions = Decisions({"data": 4})
    made = graph(update, arguments)
    for value in made.structure.data:
        decisions.set_value(value, "data", 0, None)
    with pytest.raises(ValueError, match=r"each device has 4 rows.* 8 micro-batches"):
        split_step(made, decisions, 8)
