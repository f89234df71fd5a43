"""The integer programme: as good as every choice tried in turn, within memory, and never silent."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from troupe import partitioning as pt
from troupe.baselines.speed import steps
from troupe.partitioning import models
from troupe.partitioning.decide.actions import REPLICATED, Action, Settle
from troupe.partitioning.tactics.search.programme import Programme
from troupe.partitioning.tactics.search.space import Space

MESH = pt.Mesh({"data": 4, "model": 2})


def small_space() -> Space:
    def update(state: Any, batch: Any) -> Any:
        return state, {"y": jnp.tanh(batch["x"] @ state["w"])}

    step = pt.partition(update, pt.Mesh({"data": 8}), [], simulate=pt.Simulator("h200"))
    f32 = jax.ShapeDtypeStruct
    state = {"w": f32((2048, 4096), jnp.float32)}
    plan = step.plan(state, {"x": f32((8192, 2048), jnp.float32)})
    return Space(plan.context(("tried",)), ("data",))


def test_it_is_as_good_as_every_choice_in_turn() -> None:
    space = small_space()
    programme = Programme(space, ("data",), math.inf)
    proposal = programme.solve(None)
    assert proposal.moves is not None
    options: list[list[Action | Settle | None]] = []
    for value, tilings in programme.choices.items():
        given = [tiles.get("data") for tiles in tilings.values()]
        options.append([Action(value, "data", REPLICATED if d is None else d) for d in given])
    for node, ways in programme.ways.items():
        factors = [way.get("data") for way in ways.values()]
        options.append([None if f is None else Settle(node, "data", f) for f in factors])
    assert 100 < math.prod(map(len, options)) < 5000
    start, least = len(space.state.journal), math.inf
    for chosen in itertools.product(*options):
        space.enter([action for action in chosen if action is not None])
        seen = space.estimate.see(space.state, space.state.journal[start:], space.seen)
        least = min(least, space.estimate(seen).seconds)
        space.state.rewind(start)
    assert least < 0.5 * space.estimated(()).seconds
    assert space.estimated(proposal.moves).seconds <= 1.01 * least


def test_a_limit_binds_and_what_cannot_be_is_told() -> None:
    space = small_space()
    free = Programme(space, ("data",), math.inf).solve(None)
    assert free.moves is not None
    needs = space.estimated(free.moves).peak
    whole = space.estimated(()).peak
    tight = Programme(space, ("data",), 0.95 * needs).solve(None)
    assert tight.moves is not None
    assert space.estimated(tight.moves).peak <= 0.95 * needs
    assert tight.objective > 1.05 * free.objective
    none = Programme(space, ("data",), 0.01 * whole).solve(None)
    assert none.moves is None
    assert "infeasible" in str(none).lower()


def test_what_it_proposes_beats_the_search_and_is_told() -> None:
    sizes = {"batch": 64, "length": 128, "width": 1024, "hidden": 4096, "experts": 8}
    example = steps.make("experts", **sizes)

    def planned(**budget: Any) -> pt.Plan:
        automatic = pt.Automatic(("data", "model"), budget=pt.Budget(60, judged=3, **budget))
        step = pt.partition(
            example.update, MESH, [automatic], donate=("state",), simulate=pt.Simulator("h200")
        )
        return step.plan(example.state_shapes, example.batch_shapes)

    alone, beside = planned(), planned(programme=True)
    times = [plan.steps[-1].simulation.predicted_seconds.total for plan in (alone, beside)]
    assert times[1] <= 0.95 * times[0]
    assert "integer programme" in str(beside)
    assert "optimal" in beside.steps[-1].log.programme


def test_what_it_proposes_runs_and_equals_the_whole_step() -> None:
    example = models.make("experts")
    space = Space(
        pt.partition(example.update, MESH, [], simulate=pt.Simulator("h200"))
        .plan(example.state_shapes, example.batch_shapes)
        .context(("tried",)),
        ("data", "model"),
    )
    # Where a collective costs nothing, everything is split.
    proposal = Programme(space, ("data", "model"), math.inf, weight=0.0).solve(None)
    assert proposal.moves
    step = pt.partition(example.update, MESH, proposal.moves, simulate=pt.Simulator("h200"))
    arguments = models.mid_training(example)
    got, wanted = jax.device_get((step(*arguments), jax.jit(example.update)(*arguments)))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
