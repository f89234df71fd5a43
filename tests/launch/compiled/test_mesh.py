"""Compiled runs over a mesh: they learn what they learn on one device."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from troupe import launch
from troupe.agents.snapshots import to_host
from troupe.launch.compiled.program import LoopProgram
from troupe.launch.errors import RequestError

from ...reporters import Lines
from .test_compiled import DQN, FULL, PPO, assert_same, learned, run
from .test_population import assert_as_alone, configured, seeded, together

LONG = pytest.mark.long
EXHAUSTIVE = pytest.mark.skipif(not FULL, reason="shown by other rows; set TROUPE_FULL=1")
FOUR_ENVS = dataclasses.replace(DQN, config={**DQN.config, "num_envs": 4})


def over(recipe, mesh, schedule=None):
    return dataclasses.replace(recipe, mesh=mesh, schedule=schedule)


@pytest.fixture
def states(monkeypatch):
    """States of programs as they go on; the newest is theirs still."""
    found = []
    advance = LoopProgram.advance

    def remembered(self, *arguments):
        state, progress = advance(self, *arguments)
        found.append(state)
        return state, progress

    monkeypatch.setattr(LoopProgram, "advance", remembered)
    return found


def parameters(states):
    return jax.tree.leaves(to_host(states[-1].learning.state))


def part(leaf):
    """Shape of what one device holds."""
    return leaf.sharding.shard_shape(leaf.shape)


@pytest.mark.parametrize(
    ("recipe", "mesh", "schedule"),
    [
        pytest.param(PPO, "data=4", None, id="ppo"),
        pytest.param(
            *(FOUR_ENVS, "data=2,model=2", "batch:data,megatron:model,zero3:data"), id="megatron"
        ),
        pytest.param(FOUR_ENVS, "data=2", None, id="dqn", marks=[LONG, EXHAUSTIVE]),
        pytest.param(FOUR_ENVS, "model=2", "megatron:model", id="whole-batch", marks=LONG),
        pytest.param(DQN, "data=2", "batch:data", id="whole-environments", marks=LONG),
    ],
)
def test_one_run(tmp_path, states, recipe, mesh, schedule):
    reporter = Lines()
    found = run(over(recipe, mesh, schedule), tmp_path / "mesh", reporter=reporter)
    acting, mine = states[-1].acting, parameters(states)
    alone = run(recipe, tmp_path / "alone")
    assert found.mesh == mesh
    for name in ("actor_steps", "learner_steps", "episodes", "samples_per_insert"):
        assert getattr(found, name) == getattr(alone, name), name
    for one, another in zip(mine, parameters(states), strict=True):
        np.testing.assert_allclose(one, another, rtol=5e-3, atol=5e-4)

    n = recipe.config["num_envs"]
    spread = "data=2" in mesh and n == 4
    said = [line for line in reporter.lines if "each" in line and "whole replay" in line]
    assert bool(said) == (n == 3 or mesh == "model=2")
    each = n if said else n // (2 if spread else 4)
    assert part(acting.timestep.observation)[0] == each
    assert part(acting.replay.rows.columns["observation"][0])[1] == each


def test_the_learner_lies_as_it_is_planned(tmp_path, states):
    run(over(FOUR_ENVS, "data=4", "batch:data,zero3:data"), tmp_path)
    leaves = jax.tree.leaves(states[-1].learning.state.params)
    assert {leaf.size // math.prod(part(leaf)) for leaf in leaves if leaf.size >= 16} == {4}


def test_several_runs(tmp_path, states):
    """As many on each device; what each learns is what it learns alone."""
    recipes = seeded(DQN, 3, 0, 7, 5)
    meshed = [over(one, "data=2") for one in recipes]
    outs, results = together(meshed, tmp_path)
    acting = states[-1].acting
    assert part(acting.actor_steps) == (2,)
    assert part(acting.replay.rows.ages)[0] == 2
    assert_as_alone(recipes[2], outs[2], results[2], tmp_path / "alone")
    assert results[2].mesh == "data=2"


@pytest.mark.long
@EXHAUSTIVE
def test_several_runs_go_on(tmp_path):
    """Over the mesh, each without the others, and over none."""
    recipes = [over(one, "data=2") for one in seeded(DQN, 3, 7)]
    whole, _ = together(recipes, tmp_path / "whole")
    outs, _ = together([dataclasses.replace(one, steps=200) for one in recipes], tmp_path)
    together(recipes, tmp_path, resume=[True, True])
    for one, other in zip(whole, outs, strict=True):
        assert_same(learned(one), learned(other))
    longer = launch.resume(outs[1], steps=600, progress=False)
    assert longer.actor_steps >= 597


@pytest.mark.long
@EXHAUSTIVE
def test_several_rates(tmp_path):
    rates = [over(one, "data=2") for one in configured(PPO, "learning_rate", 1e-4, 3e-3)]
    outs, results = together(rates, tmp_path / "rates")
    assert_as_alone(configured(PPO, "learning_rate", 3e-3)[0], outs[1], results[1], tmp_path / "a")


@pytest.mark.long
def test_a_run_goes_on_over_another_mesh(tmp_path):
    short = dataclasses.replace(FOUR_ENVS, steps=200)
    run(over(short, "data=4"), tmp_path)
    alone = launch.resume(tmp_path, steps=300, progress=False)
    assert alone.mesh == "data=4"
    later = over(dataclasses.replace(FOUR_ENVS, steps=400), "data=2,model=2", "megatron:model")
    assert run(later, tmp_path, resume=True).actor_steps >= 397


@pytest.mark.parametrize(
    ("recipes", "words"),
    [
        ([over(one, "data=2") for one in seeded(DQN, 0, 1, 2)], "3 runs cannot be divided by"),
        (
            [over(one, "data=2", "batch:data,zero3:data") for one in seeded(DQN, 0, 1)],
            "leave out all but --mesh",
        ),
    ],
)
def test_what_cannot_be_spread_is_said(tmp_path, recipes, words):
    with pytest.raises(RequestError, match=words):
        together(recipes, tmp_path)


def test_too_few_devices_are_said(tmp_path):
    with pytest.raises(ValueError, match="needs 16 devices"):
        run(over(PPO, "data=16"), tmp_path)
    with pytest.raises(ValueError, match="needs 16 devices"):
        together([over(one, "data=16") for one in seeded(PPO, *range(16))], tmp_path / "several")
