"""What another tactic tiles over the axis of the stages is interlaced, and the step is equal."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from troupe import partitioning as pt
from troupe.partitioning.pipelines import parse_table

from ... import results
from .steps import doubles, example, wide

H100 = pt.Simulator("h100")
STAGES = pt.Mesh({"stage": 2})
EMBEDDING = pt.parse_schedule("embedding:stage")
HEAD = [pt.Manual("head", {"state/params/head/w": 1}, "stage")]


def follow(update: Any, arguments: Any, schedule: Any, tolerance: float, mesh: Any = STAGES) -> Any:
    state, batch = arguments
    step = pt.partition(update, mesh, schedule, simulate=H100)
    plan = step.plan(state, batch)
    results.follow(step, update, state, batch, tolerance)
    return plan


@pytest.mark.parametrize(
    ("tactics", "sizes", "name", "whole"),
    [
        (EMBEDDING, {"tied": True, "optimizer": "adam"}, "1f1b", [0, 3]),
        ([*EMBEDDING, *HEAD], {}, "zero-bubble", [0, 3]),
        (HEAD, {"optimizer": "adam"}, "gpipe", [2]),
        # Cells with both gradients, and such with one, in one table.
        (EMBEDDING, {"num_heads": 2}, "dualpipe-v", [0]),
    ],
)
def test_updates_are_those_of_the_whole_step(
    tactics: Any, sizes: Any, name: str, whole: list[int]
) -> None:
    with doubles(True):
        update, arguments = example(
            "transformer",
            num_layers=2,
            vocabulary=16,
            bias=False,
            clip=0.1,
            dtype="float64",
            **sizes,
        )
        schedule = [*tactics, pt.Pipeline("stage", 4, name)]
        plan = follow(update, wide(arguments), schedule, 1e-9)
        placement = json.loads(plan.to_json())["steps"][-1]["pipeline"]["table"]["placement"]
    assert [s for s, places in enumerate(placement) if places == [0, 1]] == whole


def critic_then_policy(state: Any, batch: Any) -> Any:
    """A policy that climbs the critic which the same step has updated; both embed tokens."""

    def apply(params: Any, x: Any) -> Any:
        return jnp.tanh(jnp.tanh(x @ params["in"]) @ params["mid"]) @ params["out"]

    def critic_loss(critic: Any) -> Any:
        error = apply(critic, critic["embed"][batch["tokens"]]) - batch["y"]
        return jnp.mean(error**2)

    def policy_loss(policy: Any, critic: Any) -> Any:
        x = critic["embed"][batch["tokens"]]
        return -jnp.mean(apply(critic, x + apply(policy, x)))

    def stepped(params: Any, grads: Any) -> Any:
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        return jax.tree.map(lambda w, g: w - 0.1 * g / jnp.maximum(norm, 1.0), params, grads)

    loss, grads = jax.value_and_grad(critic_loss)(state["critic"])
    critic = stepped(state["critic"], grads)
    policy = stepped(state["policy"], jax.grad(policy_loss)(state["policy"], critic))
    return {"critic": critic, "policy": policy}, loss


def epochs(state: Any, batch: Any) -> Any:
    """Two epochs over two shuffled minibatches, with errors of the parameters before."""

    def apply(w: Any, tokens: Any) -> Any:
        return jnp.tanh(jnp.tanh(w["embed"][tokens] @ w["in"]) @ w["mid"]) @ w["out"]

    rows = {"tokens": batch["tokens"], "error": batch["y"] - apply(state["w"], batch["tokens"])}

    def step(w: Any, part: Any) -> Any:
        def mean_error(w: Any) -> Any:
            return jnp.mean((apply(w, part["tokens"]) - part["error"]) ** 2)

        loss, grads = jax.value_and_grad(mean_error)(w)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, grads), loss

    def epoch(w: Any, key: Any) -> Any:
        order = jax.random.permutation(key, 16).reshape(2, 8)
        return jax.lax.scan(step, w, jax.tree.map(lambda x: x[order], rows))

    w, losses = jax.lax.scan(epoch, state["w"], jax.random.split(jax.random.PRNGKey(3), 2))
    return {"w": w}, losses[-1].mean()


@pytest.mark.parametrize(
    ("update", "path", "phases"),
    [(critic_then_policy, "state/critic/embed", 2), (epochs, "state/w/embed", 5)],
)
def test_phases_are_interlaced(update: Any, path: str, phases: int) -> None:
    keys = iter(jax.random.split(jax.random.PRNGKey(2), 9))

    def normal(*shape: int) -> Any:
        return jax.random.normal(next(keys), shape)

    def layers(out: int) -> Any:
        return {"in": normal(4, 8), "mid": normal(8, 8), "out": normal(8, out)}

    state = {path.split("/")[1]: {"embed": normal(16, 4), **layers(1)}}
    if update is critic_then_policy:
        state["policy"] = layers(4)
    batch = {"tokens": jax.random.randint(next(keys), (16,), 0, 16), "y": normal(16, 1)}
    schedule = [pt.Manual("embedding", {path: 0}, "stage"), pt.Pipeline("stage", 4)]
    with doubles(True):
        plan = follow(update, wide((state, batch)), schedule, 1e-9)
        figures = json.loads(plan.to_json())["steps"][-1]["pipeline"]
    assert figures["phases"] == phases
    assert [0, 1] in figures["table"]["placement"]


def test_an_edited_table_is_taken() -> None:
    update, arguments = example("transformer", num_layers=2, vocabulary=16, tied=True)
    schedule = [*EMBEDDING, pt.Pipeline("stage", 4)]
    plan = pt.partition(update, STAGES, schedule, simulate=H100).plan(*arguments)
    assert plan.pipeline is not None
    table = parse_table(str(plan.pipeline.table))
    given = [*EMBEDDING, pt.Pipeline("stage", schedule=table)]
    again = pt.partition(update, STAGES, given, simulate=H100).plan(*arguments)
    assert again.pipeline is not None
    assert again.pipeline.table == table
    with pytest.raises(ValueError, match=r"runs segments \[0, 3\] on all devices.* segments \[\]"):
        pt.partition(update, STAGES, given[1:], simulate=H100).plan(*arguments)


@pytest.mark.parametrize(
    ("tactics", "schedule", "message"),
    [
        ("batch:stage", "1f1b", "tiles every product over axis 'stage'"),
        ("embedding:stage", "3f1b", "the step has one forward pass"),
    ],
)
def test_what_cannot_be(tactics: str, schedule: str, message: str) -> None:
    update, arguments = example("transformer", num_layers=2, vocabulary=16)
    given = [*pt.parse_schedule(tactics), pt.Pipeline("stage", 4, schedule)]
    with pytest.raises(ValueError, match=message):
        pt.partition(update, STAGES, given, simulate=H100).plan(*arguments)
