"""Compiled runs choose legal actions alone, in training and evaluations."""

import dataclasses
import json

import numpy as np
import pytest

from troupe.agents.dqn import DQNBuilder
from troupe.launch import running
from troupe.launch.errors import DivergedError
from troupe.launch.experiment import Evaluation
from troupe.launch.specification.recipe import Recipe

from ...agents.rows import AGENTS, FULL

ALWAYS = {"dqn", "ppo"}
"""Those that run always; the others with TROUPE_FULL=1 in the environment."""
ROWS = [
    name
    for name, row in AGENTS.items()
    if "masked" in row.kinds and "+" not in row.agent and name not in ("bc", "crr", "iql")
]
assert {*ROWS} >= ALWAYS
NOT_A_NUMBER = float("nan")
"""Reward of an illegal move: with it learning diverges, wherever it is drawn."""


def recipe(name, steps=600):
    row = AGENTS[name]
    config = {**row.config, "discount": 0.99, "hidden_sizes": (8,)}
    if row.agent == "ppo":
        config |= {"num_envs": 8, "rollout_length": 8, "num_minibatches": 2}
    if "min_replay_size" in config:
        config |= {"min_replay_size": 16, "batch_size": 8, "samples_per_insert": 4.0}
    return Recipe(
        row.agent,
        "jax:Nim-v0",
        config,
        steps=steps,
        environment={"penalty": NOT_A_NUMBER},
        evaluation=Evaluation(every=10**6, final_episodes=20),
    )


def run(made, out, kind="compiled"):
    request = dataclasses.replace(made, launch=kind).to_json()
    return running.runner(kind, {})(made.experiment(), out, progress=False, request=request)


@pytest.mark.parametrize("name", ROWS if FULL else sorted(ALWAYS))
def test_nothing_illegal_is_done(name, tmp_path):
    made = recipe(name)
    run(made, tmp_path / "run")
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    numbers = [x for row in rows for x in row.values() if isinstance(x, float)]
    assert numbers
    assert np.isfinite(numbers).all()
    (judged,) = json.loads((tmp_path / "run" / "result.json").read_text())["evaluation"]
    assert -1.0 <= judged["min"] <= judged["max"] <= 1.0


def test_what_is_illegal_would_be_seen(tmp_path, monkeypatch):
    """As if there were no masks, the same run diverges."""
    make = DQNBuilder.make_policy

    def ignoring(self, networks, spec, **options):
        core = make(self, networks, spec, **options)

        def select_action(params, observation, state):
            mask = observation["action_mask"] | True
            return core.select_action(params, {**observation, "action_mask": mask}, state)

        return core._replace(select_action=select_action)

    monkeypatch.setattr(DQNBuilder, "make_policy", ignoring)
    with pytest.raises(DivergedError):
        run(recipe("dqn"), tmp_path / "run")
