"""Collectives counted by arithmetic, in our own program and in what the compiler makes of it.

p: parameter tensors, all of them tiled by ZeRO. An MLP's layer is a pair of matrices, up and down.
"""

import re

import jax
import pytest

from troupe import partitioning as pt
from troupe.partitioning import models

MESH = {"data": 4, "model": 2}
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def planned(name, schedule, mesh=None, **sizes):
    """The partitioned step of an example and its plan."""
    example = models.make(name, **sizes)
    step = pt.partition(
        example.update,
        pt.Mesh(mesh or MESH),
        pt.parse_schedule(schedule),
    )
    return step, step.plan(example.state_shapes, example.batch_shapes)


def counted(step):
    return tuple(step.collectives[kind] for kind in KINDS)


def parameters(name, **sizes):
    return len(jax.tree_util.tree_leaves(models.make(name, **sizes).state_shapes["params"]))


def check(name, sizes, megatron):
    """The whole table, for a model that reduces so many times under Megatron.

    The steps of one plan are the counts of every shorter schedule.
    """
    p = parameters(name, **sizes)
    for last in ("zero2", "zero3"):
        _, plan = planned(name, f"batch:data,megatron:model,{last}:data", **sizes)
        assert not plan.conflicts
        batch, both, sharded = map(counted, plan.steps)
        assert batch == (p + 1, 0, 0, 0)
        assert both == (p + 1 + megatron, 0, 0, 0)
        assert sharded == (1 + megatron, p, p, 0)
    _, plan = planned(name, "megatron:model", **sizes)
    assert counted(plan) == (megatron, 0, 0, 0)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_layers", [2, 3, 4, 5, 6])
def test_mlp(num_layers, bias):
    sizes = {"num_layers": num_layers, "bias": bias, "optimizer": "adam"}
    assert parameters("mlp", **sizes) == num_layers * (3 if bias else 2)
    # The input is not differentiated: the first layer reduces forward only.
    check("mlp", sizes, megatron=2 * num_layers - 1)


VARIANTS = {
    "separate": {},
    "fused": {"fused_qkv": True},
    "tied": {"tied": True},
    "post_norm": {"pre_norm": False},
    "fused tied post_norm": {"fused_qkv": True, "tied": True, "pre_norm": False},
    "rotary": {"rotary": True},
}


# More layers are more of the same, whatever a layer is.
@pytest.mark.parametrize(
    ("variant", "num_layers"),
    [
        *(("separate", layers) for layers in (1, 2, 3, 4)),
        *((v, 2) for v in VARIANTS if v != "separate"),
    ],
)
def test_transformer(variant, num_layers):
    sizes = {"num_layers": num_layers, "optimizer": "adam", **VARIANTS[variant]}
    # Attention and MLP reduce once each forward, and once each backward. A tied matrix is used at
    # both ends of the network, and gathered once, before it is transposed.
    check("transformer", sizes, megatron=4 * num_layers)


@pytest.mark.parametrize("schedule", ["batch:data", "megatron:model", "batch:data,megatron:model"])
def test_layers_in_a_scan_count_as_often_as_they_run(schedule):
    sizes = {"num_layers": 3, "optimizer": "sgd"}
    _, unrolled = planned("transformer", schedule, **sizes)
    _, scanned = planned("transformer", schedule, scan=True, **sizes)
    reduced = unrolled.collectives["all_reduce"]
    if "batch" in schedule:
        # Stacked gradients are reduced together after the loop: never more often than one by one.
        assert scanned.collectives["all_reduce"] <= reduced
    else:
        assert scanned.collectives["all_reduce"] == reduced
    assert sum(scanned.collectives.values()) == scanned.collectives["all_reduce"]


def test_clipping_costs_one_reduction_per_axis():
    # The sum of squares of tiled gradients is one number, summed over tensors before it is reduced.
    sizes = {"num_layers": 2, "optimizer": "adam", "clip": 1.0}
    p = parameters("transformer", **sizes)
    _, plan = planned("transformer", "batch:data,megatron:model,zero3:data", **sizes)
    assert [counted(step) for step in plan.steps] == [
        (p + 1, 0, 0, 0),
        (p + 1 + 8 + 1, 0, 0, 0),
        (1 + 8 + 2, p, p, 0),
    ]
    _, plan = planned("transformer", "batch:data,zero3:data", **sizes)
    assert counted(plan) == (1 + 1, p, p, 0)


def test_every_tactic_is_a_step_of_the_plan():
    _, plan = planned("mlp", "batch:data,megatron:model,zero3:data", num_layers=2)
    assert [step.axis for step in plan.steps] == ["data", "model", "data"]
    assert [tuple(step.collectives.values()) for step in plan.steps] == [
        (5, 0, 0, 0),
        (8, 0, 0, 0),
        (4, 4, 4, 0),
    ]
    for step in plan.steps:
        moved = {kind for kind, size in step.bytes_moved.items() if size}
        assert moved == {kind for kind, count in step.collectives.items() if count}


def in_text(compiled):
    """How many of each collective an HLO text holds, loop bodies once."""
    text = compiled.as_text()
    return tuple(
        len(re.findall(rf" {kind.replace('_', '-')}(?:-start)?\(", text)) for kind in KINDS
    )


def without_combiners(lowered):
    """Compiles as written: no collective merged with another."""
    options = {"xla_backend_optimization_level": 0}
    if jax.__version_info__ >= (0, 7):
        options["xla_disable_hlo_passes"] = "cpu-all-reduce-combiner,cse"
    return lowered.compile(compiler_options=options)


def as_written(plan):
    """How many of each collective our program holds, loop bodies once."""
    counts = dict.fromkeys(KINDS, 0)
    for op in plan.program.walk():
        if op.name in counts:
            counts[op.name] += 1
    return tuple(counts.values())


COMPILED = [
    ("mlp", "batch:data", {"num_layers": 3}),
    ("mlp", "megatron:model", {"num_layers": 3}),
    ("mlp", "batch:data,megatron:model,zero2:data", {"optimizer": "adam"}),
    ("mlp", "batch:data,megatron:model,zero3:data", {"optimizer": "adam", "bias": True}),
    ("transformer", "batch:data,megatron:model", {}),
    ("transformer", "batch:data,megatron:model,zero3:data", {"optimizer": "adam", "clip": 1.0}),
    ("transformer", "batch:data,megatron:model", {"num_layers": 2, "scan": True}),
]


@pytest.mark.parametrize(("name", "schedule", "sizes"), COMPILED, ids=str)
def test_compiled_text_holds_the_same_collectives(name, schedule, sizes):
    example = models.make(name, **sizes)
    step = pt.partition(example.update, pt.Mesh(MESH), pt.parse_schedule(schedule))
    run = step.compile(example.state_shapes, example.batch_shapes)
    assert in_text(without_combiners(run.lower())) == as_written(run.plan)
