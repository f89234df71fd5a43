"""3F1B: target, reference and older networks have segments of their own, and the step is equal."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from troupe import partitioning as pt
from troupe.partitioning.models import transformer
from troupe.partitioning.pipelines.schedules.named import several_forwards

from ...results import assert_equal_results, raw
from .steps import cut, doubles, wide

H100 = pt.Simulator("h100")


def mlp(params: Any, x: Any) -> Any:
    for layer in params:
        x = jnp.tanh(x @ layer["up"]) @ layer["down"] + x @ layer["skip"]
    return x


def mlp_init(key: Any, layers: int = 4) -> Any:
    """Layers of unequal widths."""
    params = []
    for i, each in enumerate(jax.random.split(key, layers)):
        up, down, skip = jax.random.split(each, 3)
        hidden = 8 * (1 + i % 2)
        params.append(
            {
                "up": jax.random.normal(up, (6, hidden)) / 3,
                "down": jax.random.normal(down, (hidden, 6)) / 3,
                "skip": jax.random.normal(skip, (6, 6)) / 3,
            }
        )
    return params


def three_forwards(apply: Any, init: Any, make_batch: Any) -> Any:
    """A step on an online network, a target that follows it, and a reference that stays."""

    def update(state: Any, batch: Any) -> Any:
        target = apply(state["target"], batch["after"])
        reference = apply(state["reference"], batch["before"])

        def loss(params: Any) -> Any:
            online = apply(params, batch["before"])
            error = jnp.mean((online - jax.lax.stop_gradient(jnp.tanh(target))) ** 2)
            return error + 0.1 * jnp.mean((online - reference) ** 2), jnp.mean(target)

        (value, mean), grads = jax.value_and_grad(loss, has_aux=True)(state["online"])
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        step = jax.tree.map(lambda g: 0.1 * g / jnp.maximum(norm, 1.0), grads)
        online = jax.tree.map(lambda p, g: p - g, state["online"], step)
        target = jax.tree.map(lambda t, p: 0.9 * t + 0.1 * p, state["target"], online)
        after = {"online": online, "target": target, "reference": state["reference"]}
        return after, {"loss": value, "target": mean, "norm": norm}

    names = ("online", "target", "reference")
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    state = {name: init(key) for name, key in zip(names, keys, strict=False)}
    before, after = jax.random.split(keys[3])
    return update, (state, {"before": make_batch(before), "after": make_batch(after)})


def of_mlps() -> Any:
    return three_forwards(mlp, mlp_init, lambda key: jax.random.normal(key, (16, 6)))


def of_transformers() -> Any:
    sizes = transformer.Sizes(num_layers=2, vocabulary=16, dtype="float64")
    return three_forwards(
        lambda params, tokens: transformer.apply(sizes, params, tokens),
        lambda key: transformer.params_init(sizes, key),
        lambda key: jax.random.randint(key, (16, sizes.length), 0, 16),
    )


@pytest.mark.parametrize("make", [of_mlps, of_transformers])
def test_updates_are_those_of_the_whole_step(make: Any) -> None:
    with doubles(True):
        update, (state, batch) = make()
        state, batch = wide(state), wide(batch)
        schedule = [pt.Pipeline("stage", 4, "3f1b")]
        step = pt.partition(update, pt.Mesh({"stage": 2}), schedule, simulate=H100)
        figures = json.loads(step.plan(state, batch).to_json())["steps"][-1]["pipeline"]
        assert figures["segments"] == 6
        wanted, jitted = state, jax.jit(update)
        for _ in range(2):
            state, found = step(state, batch)
            wanted, metrics = jitted(wanted, batch)
        assert_equal_results(raw((state, found)), raw((wanted, metrics)), 1e-9)


def test_a_layer_and_its_target_lie_on_one_stage() -> None:
    update, (state, batch) = of_mlps()
    schedule = [pt.Pipeline("stage", 4, "3f1b")]
    plan = pt.partition(update, pt.Mesh({"stage": 2}), schedule, simulate=H100).plan(state, batch)
    for layer in range(4):
        for network in ("online", "target"):
            where = plan.explain(f"state/{network}/{layer}/up")
            assert f"lies on stage {layer // 2} of axis" in where
    figures = json.loads(plan.to_json())["steps"][-1]["pipeline"]
    assert figures["shared_state_bytes"] == 0
    again = pt.partition(update, pt.Mesh({"stage": 2}), schedule, decisions=plan.decisions)
    assert str(again.plan(state, batch)) == str(plan)


def test_forward_passes_keep_no_activations() -> None:
    update, arguments = of_mlps()
    (step,) = cut(update, arguments, 2, 4, forwards=3).phases
    for segment in range(4):
        assert step.cells[segment, "forward"].program.ops
        assert (segment, "backward") not in step.cells
    # What the loss reads of the others, and what the next stage does.
    assert [*step.edges.sources[5, "forward"]] == [(1, "forward"), (3, "forward"), (4, "forward")]


def critics_then_policy(state: Any, batch: Any) -> Any:
    """A critic learns from its target, and then the policy from the critic of that step."""

    def value(critic: Any, x: Any) -> Any:
        return jnp.tanh(x @ critic["in"]) @ critic["out"]

    def apply(policy: Any, x: Any) -> Any:
        return jnp.tanh(x + jnp.tanh(x @ policy["in"]) @ policy["out"])

    wanted = value(state["target"], apply(state["policy"], batch["after"]))

    def critic_loss(critic: Any) -> Any:
        return jnp.mean((value(critic, batch["before"]) - jax.lax.stop_gradient(wanted)) ** 2)

    def policy_loss(policy: Any, critic: Any) -> Any:
        return -jnp.mean(value(critic, apply(policy, batch["before"])))

    def stepped(params: Any, grads: Any) -> Any:
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads)

    loss, grads = jax.value_and_grad(critic_loss)(state["critic"])
    critic = stepped(state["critic"], grads)
    policy = stepped(state["policy"], jax.grad(policy_loss)(state["policy"], critic))
    target = jax.tree.map(lambda t, w: 0.9 * t + 0.1 * w, state["target"], critic)
    return {"critic": critic, "policy": policy, "target": target}, loss


def test_phases_have_several_forwards() -> None:
    keys = iter(jax.random.split(jax.random.PRNGKey(1), 8))
    shapes = {"critic": ((4, 8), (8, 1)), "target": ((4, 8), (8, 1)), "policy": ((4, 8), (8, 4))}
    state = {
        name: {"in": jax.random.normal(next(keys), i), "out": jax.random.normal(next(keys), o)}
        for name, (i, o) in shapes.items()
    }
    batch = {name: jax.random.normal(next(keys), (16, 4)) for name in ("before", "after")}
    with doubles(True):
        state, batch = wide(state), wide(batch)
        schedule = [pt.Pipeline("stage", 4, "3f1b")]
        step = pt.partition(critics_then_policy, pt.Mesh({"stage": 2}), schedule, simulate=H100)
        figures = json.loads(step.plan(state, batch).to_json())["steps"][-1]["pipeline"]
        assert (figures["segments"], figures["phases"]) == (4, 2)
        assert_equal_results(
            raw(step(state, batch)), raw(jax.jit(critics_then_policy)(state, batch)), 1e-9
        )


def test_an_edited_table_is_taken() -> None:
    update, (state, batch) = of_mlps()
    mesh = pt.Mesh({"stage": 2})
    given = [pt.Pipeline("stage", schedule=several_forwards(2, 8, 3))]
    plan = pt.partition(update, mesh, given, simulate=H100).plan(state, batch)
    assert plan.pipeline is not None
    assert plan.pipeline.table.segments == 6
    two = [pt.Pipeline("stage", schedule=several_forwards(2, 8, 2))]
    with pytest.raises(ValueError, match="of 2 forward passes, the step has 3"):
        pt.partition(update, mesh, two, simulate=H100).plan(state, batch)
