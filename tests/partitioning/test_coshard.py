"""Layers that run in parts, in turn on one device, are the layers; they need less memory."""

from __future__ import annotations

from typing import Any

import pytest

from troupe import partitioning as pt

from .. import results
from .pipelines.steps import doubles, example, wide

H100 = pt.Simulator("h100")
ATTENTION = pt.CoShard(2, "state/params/**/attention/**")


def follow(
    update: Any, arguments: Any, mesh: Any, schedule: Any, parts: pt.CoShard, tolerance: float
) -> pt.Partitioned:
    state, batch = arguments
    step = pt.partition(update, mesh, schedule, co_shard=parts, simulate=H100)
    results.follow(step, update, state, batch, tolerance)
    return step


@pytest.mark.parametrize("fused", [False, True])
def test_a_transformer_in_parts(fused: bool) -> None:
    with doubles(True):
        update, arguments = example(
            "transformer", num_layers=2, bias=False, fused_qkv=fused, clip=0.1
        )
        step = follow(update, wide(arguments), pt.Mesh({"data": 1}), [], pt.CoShard(2), 1e-6)
        plan = step.plan(*wide(arguments))
    # A loop for each pass of attention and of the MLP of each layer.
    assert [op.params["length"] for op in plan.graph.program.ops if op.name == "scan"] == [2] * 8


@pytest.mark.parametrize(
    ("mesh", "schedule"),
    [
        ({"data": 2}, "batch:data"),
        ({"data": 2, "model": 2}, "batch:data,megatron:model,zero3:data"),
        ({"stage": 2}, "pipeline:stage"),
    ],
)
def test_with_tactics(mesh: dict[str, int], schedule: str) -> None:
    update, arguments = example("transformer", num_layers=2, batch=16, bias=False, clip=0.1)
    follow(update, arguments, pt.Mesh(mesh), pt.parse_schedule(schedule), ATTENTION, 2e-5)


def test_memory_is_that_of_a_part() -> None:
    update, arguments = example("transformer", batch=1, length=512, width=32, num_heads=8)
    peaks = []
    for parts in (None, pt.CoShard(8, "state/params/**/attention/**")):
        step = pt.partition(update, pt.Mesh({"data": 1}), [], co_shard=parts, simulate=H100)
        memory = step.lower(*arguments).compile().memory_analysis()
        peaks.append(memory.temp_size_in_bytes)
        predicted = step.plan(*arguments).steps[-1].simulation
        assert predicted.memory.temporaries == pytest.approx(peaks[-1], rel=0.3)
    assert peaks[1] < peaks[0] / 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pt.CoShard(1), "a layer has at least 2 parts"),
        (lambda: pt.CoShard(3), "names no first matrix of a pair that divides into 3 parts"),
        (lambda: pt.CoShard(2, "state/params/**/attn/**"), "there are .*attention/q/w"),
        (lambda: pt.CoShard(8, ATTENTION.paths), "heads of an attention do not divide"),
        (lambda: 2, "write e.g. pt.CoShard"),
    ],
)
def test_what_cannot_be(make: Any, message: str) -> None:
    update, arguments = example("transformer", num_layers=1)
    with pytest.raises((ValueError, TypeError), match=message):
        pt.partition(update, pt.Mesh({"data": 1}), [], co_shard=make()).plan(*arguments)


def test_layers_within_a_loop_are_refused() -> None:
    update, arguments = example("transformer", num_layers=2, scan=True)
    step = pt.partition(update, pt.Mesh({"data": 1}), [], co_shard=pt.CoShard(2))
    with pytest.raises(ValueError, match=r"arrays of their own|no first matrix"):
        step.plan(*arguments)
