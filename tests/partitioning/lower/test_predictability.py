"""What a schedule costs can be told beforehand; what a compiler makes of it cannot."""

import re

import jax
import pytest

from troupe import partitioning as pt
from troupe.partitioning import models

MESH = pt.Mesh({"data": 8})
#: The newest compilers merge all-reduces, which would hide how many there are.
AS_WRITTEN = (
    {"xla_disable_hlo_passes": "cpu-all-reduce-combiner,cse"}
    if jax.__version_info__ >= (0, 7)
    else None
)
MLP = {"num_layers": 4, "bias": True, "batch": 32, "width": 16, "hidden": 32}


@pytest.fixture(scope="module")
def example():
    found = models.make("mlp", **MLP)
    assert len(jax.tree_util.tree_leaves(found.state_shapes["params"])) == 12
    return found


def partitioned(example):
    return pt.partition(example.update, MESH, pt.parse_schedule("batch:data,zero3:data"))


def test_batch_then_zero3_on_four_layers(example):
    plan = partitioned(example).plan(example.state_shapes, example.batch_shapes)
    assert plan.collectives == {
        "all_reduce": 1,
        "all_gather": 12,
        "reduce_scatter": 12,
        "all_to_all": 0,
    }
    assert not plan.conflicts


def test_both_tactics_merged_into_one_conflict(example):
    merged = pt.Manual("merged", {"batch": 0, "state/params": pt.FIRST_DIVISIBLE}, axis="data")
    plan = pt.partition(example.update, MESH, [merged]).plan(
        example.state_shapes, example.batch_shapes
    )
    assert plan.conflicts
    first = plan.conflicts[0]
    assert (first.op, first.axis) == ("dot_general", "data")
    assert "layers.py" in first.source
    assert len(first.candidates) > 1
    ordered = partitioned(example).plan(example.state_shapes, example.batch_shapes)
    assert sum(plan.bytes_moved.values()) > sum(ordered.bytes_moved.values())


def test_the_compiler_given_the_same_shardings_moves_more(example):
    run = partitioned(example).compile(example.state_shapes, example.batch_shapes)
    flat = jax.tree_util.tree_leaves((example.state_shapes, example.batch_shapes))
    tree = jax.tree_util.tree_structure((example.state_shapes, example.batch_shapes))

    def update(*leaves):
        state, batch = jax.tree_util.tree_unflatten(tree, leaves)
        return tuple(jax.tree_util.tree_leaves(example.update(state, batch)))

    compiled = (
        jax.jit(update, in_shardings=run.in_shardings, out_shardings=run.out_shardings)
        .lower(*flat)
        .compile(compiler_options=AS_WRITTEN)
    )
    text = compiled.as_text()
    moves = {
        kind: len(re.findall(rf" {kind}(?:-start)?\(", text))
        for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    }
    ours = run.plan.collectives
    # It reduces each gradient whole and slices it: no reduction is ever scattered.
    assert moves["reduce-scatter"] == 0 < ours["reduce_scatter"]
    assert moves["all-gather"] + moves["all-reduce"] + moves["all-to-all"] > 12 + 1
