"""Tactics find what they split from the structure of a step, and a person can write one."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from troupe import partitioning as pt
from troupe.agents import examples
from troupe.partitioning.decide.graph import Graph
from troupe.partitioning.ir.trace import trace

MESH = pt.Mesh({"data": 4, "model": 2})


def plan(name: str, schedule: str, **sizes: Any) -> pt.Plan:
    example = examples.make(name, **sizes)
    step = pt.partition(example.update, MESH, pt.parse_schedule(schedule))
    return step.plan(example.state_shapes, example.batch_shapes)


def counts(found: pt.Plan) -> tuple[int, ...]:
    return tuple(found.collectives.values())


@pytest.mark.parametrize("name", ["mlp", "transformer", "dqn", "lstm", "ppo"])
def test_parameters_moments_and_gradients_are_told_apart(name: str) -> None:
    example = examples.make(name)
    graph = Graph(trace(example.update, example.state_shapes, example.batch_shapes))
    parts = graph.structure
    weights = {v.path for v in parts.parameters}
    moments = {v.path for v in parts.optimizer_state}
    state, path = example.state_shapes, "state"
    if name == "ppo":  # What a policy runs with is more than parameters there.
        state, path = state.variables, "state/variables"
    params = state["params"] if isinstance(state, dict) else state.params
    leaves = jax.tree_util.tree_leaves(params)
    assert sum(where.startswith(f"{path}/params/") for where in weights) == sum(
        leaf.ndim > 0 for leaf in leaves
    )
    assert all("/mu/" in path or "/nu/" in path for path in moments)
    shapes = {v.shape for v in parts.gradients}
    assert {leaf.shape for leaf in leaves if leaf.size > 1} <= shapes


def test_shuffled_minibatches_are_shared_out() -> None:
    found = plan("ppo", "batch:data")
    loops = [op for op in found.program.walk() if op.name == "scan"]
    found_in_loops = [op for loop in loops for op in loop.regions[0].walk()]
    products = [  # But for the norms of gradients that are reduced already, and their rows'.
        op.outputs[0]
        for op in found_in_loops
        if op.name == "dot_general" and len(op.outputs[0].shape) > 1
    ]
    tiled = [v for v in products if any("data" in axes for axes in v.layout or ())]
    owed = [v for v in products if v.partial]
    assert len(tiled) + len(owed) == len(products)
    # The rows are gathered once, before the loops pick from them.
    gathers = [op for op in found.program.ops if op.name == "all_gather"]
    assert found.collectives["all_gather"] == len(gathers)


def test_zero1_reduces_gradients_whole_and_gathers_parameters() -> None:
    found = plan("mlp", "batch:data,zero1:data", num_layers=2, optimizer="adam")
    assert counts(found) == (5, 4, 0, 0)


def test_zero2_splits_gradients_without_optimizer_state() -> None:
    found = plan("mlp", "batch:data,zero2:data", num_layers=2, optimizer="sgd")
    assert counts(found) == (1, 4, 4, 0)


def test_zero3_over_one_of_the_batchs_axes_scatters_there_and_reduces_the_rest() -> None:
    found = plan("mlp", "batch:data,batch:model,zero3:data", num_layers=2, optimizer="adam")
    only = plan("mlp", "batch:data,zero3:data", num_layers=2, optimizer="adam")
    assert found.collectives["reduce_scatter"] == only.collectives["reduce_scatter"] > 0
    both = plan("mlp", "batch:data,batch:model", num_layers=2, optimizer="adam")
    assert found.bytes_moved["all_reduce"] < both.bytes_moved["all_reduce"]


def test_zero3_leaves_small_arrays_whole_where_it_is_told_to() -> None:
    example = examples.make("mlp", width=64, hidden=256)
    weights = {v.path: v.nbytes for v in plan("mlp", "", width=64, hidden=256).graph.program.inputs}
    least = max(weights.values())
    schedule = [pt.tactics.zero3(axis="data", least=least)]
    found = pt.partition(example.update, MESH, schedule).plan(
        example.state_shapes, example.batch_shapes
    )
    layouts = {v.path: found.state.layout(v) for v in found.graph.program.inputs}
    split = {p for p, layout in layouts.items() if any(layout) and p.startswith("state/")}
    assert split == {p for p, n in weights.items() if p.startswith("state/") and n >= least}
    assert split


@pytest.mark.parametrize("sizes", [{}, {"scan": True}, {"scan": True, "dtype": "bfloat16"}])
def test_megatron_reduces_four_times_a_layer(sizes: dict[str, Any]) -> None:
    found = plan("transformer", "megatron:model", num_layers=2, **sizes)
    assert counts(found) == (8, 0, 0, 0)


def test_megatron_says_when_there_is_no_pair() -> None:
    found = plan("residual_net", "megatron:model")
    assert found.steps[0].notes[0].startswith("no pair of matrices: what none of them makes is")


@pytest.mark.parametrize("fused", [False, True])
def test_sequence_gathers_keys_and_values_and_scatters_their_gradients(fused: bool) -> None:
    found = plan("transformer", "batch:data,sequence:model", num_layers=2, fused_qkv=fused)
    assert not found.conflicts
    before, after = (step.collectives for step in found.steps)
    assert (after["all_gather"], after["reduce_scatter"]) == (4, 4)
    assert after["all_reduce"] <= before["all_reduce"] + 1


def test_embedding_splits_rows_and_sums_what_is_looked_up() -> None:
    found = plan("transformer", "embedding:model")
    assert found.collectives["all_gather"] == 0
    tables = [
        spec
        for spec in jax.tree_util.tree_leaves(
            found.input_shardings[0]["params"], is_leaf=lambda x: isinstance(x, PartitionSpec)
        )
        if spec == PartitionSpec("model")
    ]
    assert tables


def test_expert_splits_stacks_of_matrices() -> None:
    found = plan("experts", "expert:model")
    specs = jax.tree_util.tree_leaves(
        found.input_shardings[0]["params"], is_leaf=lambda x: isinstance(x, PartitionSpec)
    )
    assert PartitionSpec("model") in specs


def test_a_tactic_is_any_object_that_returns_actions() -> None:
    @dataclasses.dataclass(frozen=True)
    class Columns:
        axis: str
        name: str = "columns"

        def actions(self, context: pt.Context) -> list[pt.Action]:
            matrices = [v for v in context.inputs if v.ndim == 2 and v.path != "x"]
            context.notes.append(f"{len(matrices)} matrices")
            return [pt.Action(v, self.axis, -1) for v in matrices]

    shape = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    found = pt.partition(lambda x, w: jnp.tanh(x @ w), MESH, [Columns("model")]).plan(shape, shape)
    assert found.steps[0].notes == ("1 matrices",)
    assert found.output_shardings == PartitionSpec(None, "model")


def test_schedules_are_read_from_text() -> None:
    schedule = pt.parse_schedule("batch:data, megatron:model,zero3:data")
    assert [(t.name, t.axis) for t in schedule] == [
        ("batch parallel", "data"),
        ("megatron", "model"),
        ("zero3", "data"),
    ]


@pytest.mark.parametrize("form", ["products", "scan", "unrolled"])
def test_weights_that_a_step_only_reads_are_split_like_parameters(form: str) -> None:
    """Of a stack of more layers than rows, which would be taken for the batch."""
    layers, rows, width = 8, 4, 16

    def act(params: Any, batch: jax.Array) -> jax.Array:
        x = batch
        if form == "scan":
            return jax.lax.scan(lambda x, p: (jnp.tanh(x @ p[0]) @ p[1], None), x, params)[0]
        for up, down in zip(*params, strict=True) if form == "unrolled" else [params]:
            x = jnp.tanh(x @ up) @ down
        return x

    stack = () if form == "products" else (layers,)
    params = [
        jax.ShapeDtypeStruct((*stack, *shape), jnp.float32)
        for shape in ((width, 4 * width), (4 * width, width))
    ]
    batch = jax.ShapeDtypeStruct((rows, width), jnp.float32)
    schedule = pt.parse_schedule("batch:data,megatron:model,zero3:data")
    step = pt.partition(act, MESH, schedule, weights=("params",))
    found = step.plan(params, batch)
    (up, down), fed = found.input_shardings
    whole = (None,) * len(stack)
    assert up == PartitionSpec(*whole, "data", "model")
    assert down == PartitionSpec(*whole, ("model", "data"))
    assert fed == PartitionSpec("data")
    again = pt.partition(act, MESH, schedule, weights="params", decisions=found.decisions)
    assert again.plan(params, batch).input_shardings == found.input_shardings


def test_weights_that_are_no_argument_are_named() -> None:
    step = pt.partition(lambda params: params, MESH, [], weights="parms")
    with pytest.raises(ValueError, match=r"weights names 'parms'.*arguments are \['params'\]"):
        step.plan(1.0)
