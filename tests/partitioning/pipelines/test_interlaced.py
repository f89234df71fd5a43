"""What another tactic tiles over the axis of the stages is interlaced, and the step is equal."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from troupe import partitioning as pt
from troupe.partitioning.pipelines import parse_table

from ...results import assert_equal_results, raw
from .steps import doubles, example, wide

H100 = pt.Simulator("h100")
STAGES = pt.Mesh({"stage": 2})
EMBEDDING = pt.parse_schedule("embedding:stage")
HEAD = [pt.Manual("head", {"state/params/head/w": 1}, "stage")]


def follow(update: Any, arguments: Any, schedule: Any, tolerance: float, mesh: Any = STAGES) -> Any:
    state, batch = arguments
    step = pt.partition(update, mesh, schedule, simulate=H100)
    plan = step.plan(state, batch)
    wanted, jitted = jax.tree.map(jnp.copy, state), jax.jit(update)
    for _ in range(2):
        state, found = step(state, batch)
        wanted, metrics = jitted(wanted, batch)
    assert_equal_results(raw((state, found)), raw((wanted, metrics)), tolerance)
    return plan


@pytest.mark.parametrize(
    ("tactics", "sizes", "name", "whole"),
    [
        (EMBEDDING, {"tied": True, "optimizer": "adam"}, "1f1b", [0, 3]),
        ([*EMBEDDING, *HEAD], {}, "zero-bubble", [0, 3]),
        (HEAD, {"optimizer": "adam"}, "gpipe", [2]),
    ],
)
def test_updates_are_those_of_the_whole_step(
    tactics: Any, sizes: Any, name: str, whole: list[int]
) -> None:
    with doubles(True):
        update, arguments = example(
            "transformer", num_layers=2, vocabulary=16, bias=False, clip=0.1, **sizes
        )
        plan = follow(update, wide(arguments), [*tactics, pt.Pipeline("stage", 4, name)], 1e-6)
        placement = json.loads(plan.to_json())["steps"][-1]["pipeline"]["table"]["placement"]
    assert [s for s, places in enumerate(placement) if places == [0, 1]] == whole


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
