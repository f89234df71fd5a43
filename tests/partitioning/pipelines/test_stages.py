"""A step cut into segments and micro-batches, and run cell by cell, is the step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.partitioning.decide.sharding import Decisions
from troupe.partitioning.ir.execute import evaluate
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
FULL = bool(os.environ.get("TROUPE_FULL"))
SCHEDULES = {"gpipe": gpipe, "1f1b": one_f_one_b, "zero-bubble": zero_bubble}


def check(update: Any, arguments: Any, segments: int, schedule: str, tolerance: float) -> None:
    step = cut(update, arguments, segments, 4)
    found = interpret(step, SCHEDULES[schedule](segments, 4), jax.tree.leaves(arguments))
    wanted = jax.jit(update)(*arguments)
    found = jax.tree.unflatten(jax.tree.structure(wanted), found)
    assert_equal_results(found, wanted, tolerance, least=1e-3)


def in_turn() -> Iterator[tuple[str, str]]:
    """Each model in one schedule after the other, the first in all; with TROUPE_FULL=1 each."""
    for place, model in enumerate(MODELS):
        for number, schedule in enumerate(SCHEDULES):
            if FULL or place == 0 or number == place % len(SCHEDULES):
                yield model, schedule


@pytest.mark.parametrize(("model", "schedule"), list(in_turn()))
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
            given = [
                v.path for v in step.phases[0].cells[segment, work].given if "params" in v.path
            ]
            assert given
            assert all(f"layer_{segment}/" in path for path in given)
    # Only activations of the width cross, one each way.
    for segment in range(1, 4):
        (read,) = step.phases[0].cells[segment, "forward"].read
        assert read.shape == (4, 8)


def test_gradients_of_weights_are_work_of_their_own() -> None:
    update, arguments = example("mlp", num_layers=3)
    (step,) = cut(update, arguments, 3, 4).phases
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
    (phase,) = cut(update, arguments, 2, 4).phases
    assert [op.outputs[0].shape for op in phase.dependence.prepared] == [()]


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


def critic_then_policy(state: Any, batch: Any) -> Any:
    """A policy that climbs the critic which the same step has updated, at every other step."""

    def value(critic: Any, x: Any, action: Any) -> Any:
        return jnp.tanh(x @ critic["in"] + action) @ critic["out"]

    def critic_loss(critic: Any) -> Any:
        return jnp.mean((value(critic, batch["x"], batch["x"][:, :1]) - batch["y"]) ** 2)

    def policy_loss(policy: Any, critic: Any) -> Any:
        action = jnp.tanh(batch["x"] @ policy["w"])
        return -jnp.mean(value(critic, batch["x"], action))

    loss, grads = jax.value_and_grad(critic_loss)(state["critic"])
    critic = jax.tree.map(lambda w, g: w - 0.1 * g, state["critic"], grads)
    policy = jax.lax.cond(
        state["steps"] % 2 == 0,
        lambda p: jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(policy_loss)(p, critic)),
        lambda p: p,
        state["policy"],
    )
    return {"critic": critic, "policy": policy, "steps": state["steps"] + 1}, loss


def epochs(state: Any, batch: Any) -> Any:
    """Two epochs over two shuffled minibatches, with errors of the parameters before."""

    def apply(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w["a"]) @ w["b"]

    rows = {"x": batch["x"], "error": batch["y"] - apply(state["w"], batch["x"])}

    def step(w: Any, part: Any) -> Any:
        loss, grads = jax.value_and_grad(
            lambda w: jnp.mean((apply(w, part["x"]) - part["error"]) ** 2)
        )(w)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, grads), loss

    def epoch(w: Any, key: Any) -> Any:
        order = jax.random.permutation(key, 16).reshape(2, 8)
        return jax.lax.scan(step, w, jax.tree.map(lambda x: x[order], rows))

    w, losses = jax.lax.scan(epoch, state["w"], jax.random.split(jax.random.PRNGKey(3), 2))
    return {"w": w}, losses[-1].mean()


def arrays(*shapes: tuple[int, ...]) -> Iterator[Any]:
    keys = jax.random.split(jax.random.PRNGKey(1), len(shapes))
    return (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))


def weights_and_rows() -> Any:
    a, b, x, y = arrays((4, 8), (8, 4), (16, 4), (16, 4))
    return {"w": {"a": a, "b": b}}, {"x": x, "y": y}


def actor_and_critic(steps: int) -> Any:
    first, last, policy, x, y = arrays((4, 8), (8, 1), (4, 1), (16, 4), (16, 1))
    state = {"critic": {"in": first, "out": last}, "policy": {"w": policy}}
    return {**state, "steps": jnp.int32(steps)}, {"x": x, "y": y}


STEPS = {
    "norm": (norm_over_the_batch, weights_and_rows),
    "weights": (weighted_unevenly, weights_and_rows),
    "policy": (critic_then_policy, lambda: actor_and_critic(0)),
    "no policy": (critic_then_policy, lambda: actor_and_critic(1)),
    "epochs": (epochs, weights_and_rows),
}


@pytest.mark.parametrize("name", STEPS)
def test_what_waits_for_all_rows_is_a_phase_of_its_own(name: str) -> None:
    with doubles(True):
        update, make = STEPS[name]
        check(update, wide(make()), 2, "1f1b", 1e-9)


def test_a_phase_of_a_branch_that_is_not_taken_is_left_out() -> None:
    critic, policy = cut(critic_then_policy, actor_and_critic(1), 2, 4).phases
    assert critic.guard is None
    assert policy.guard is not None
    assert [v.path for v in policy.guard.inputs] == ["state/steps"]
    for steps, runs in ((0, True), (1, False)):
        assert evaluate(policy.guard, [jnp.int32(steps)]) == [runs]


def test_loops_of_steps_have_phases_of_their_own() -> None:
    counted = cut(epochs, weights_and_rows(), 2, 4).counted()
    assert [times for phase, times in counted if not phase.is_empty] == [1, 4]


def test_rows_that_mix_in_a_loop_of_unknown_length_are_refused() -> None:
    def update(state: Any, batch: Any) -> Any:
        def turn(x: Any) -> Any:
            return x - x.mean(0) / 2

        x = jax.lax.while_loop(lambda x: jnp.abs(x).max() > 1, turn, batch["x"])
        return norm_over_the_batch(state, {**batch, "x": x})

    with pytest.raises(
        ValueError, match=r"test_stages.py:\d+ mixes .* within while at test_stages"
    ):
        cut(update, weights_and_rows(), 2, 4)


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
