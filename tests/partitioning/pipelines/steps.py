"""Steps to cut into segments, and what to compare them by."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from troupe.partitioning import models
from troupe.partitioning.decide.graph import Graph
from troupe.partitioning.decide.sharding import Decisions
from troupe.partitioning.ir.trace import trace
from troupe.partitioning.options import PlanOptions
from troupe.partitioning.pipelines.stages.cells import StagedStep
from troupe.partitioning.pipelines.stages.staging import cut_step, op_seconds, split_step
from troupe.partitioning.record import graph_of
from troupe.partitioning.simulator.attach import Simulator

Tree = Any
doubles = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64


def wide(tree: Tree) -> Tree:
    """Floats as float64."""
    return jax.tree.map(lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, tree)


def example(name: str, **sizes: Any) -> tuple[Callable[..., Any], tuple[Tree, Tree]]:
    """The step of an example model and its arguments."""
    made = models.make(name, **sizes)
    key = jax.random.PRNGKey(0)
    return made.update, (made.init(key), made.make_batch(key))


def graph(update: Callable[..., Any], arguments: tuple[Tree, ...]) -> Graph:
    return graph_of(trace(update, *arguments), PlanOptions())


def cut(
    update: Callable[..., Any],
    arguments: tuple[Tree, ...],
    segments: int,
    microbatches: int,
    forwards: int = 1,
) -> StagedStep:
    decisions = Decisions({})
    dependence = split_step(graph(update, arguments), decisions, microbatches)
    seconds = partial(op_seconds, dependence.program, Simulator("h100"), decisions.mesh)
    return cut_step(dependence, segments, seconds, forwards=forwards)
