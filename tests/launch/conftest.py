"""Runs small enough to be tests."""

import pytest

from troupe.launch.experiment import Checkpointing, Evaluation
from troupe.launch.recipe import Recipe

TINY = {
    "hidden_sizes": "8",
    "batch_size": 4,
    "min_replay_size": 16,
    "max_replay_size": 500,
    "samples_per_insert": 2.0,
    "steps_per_dispatch": 2,
    "epsilon_decay_steps": 100,
    "num_envs": 2,
}


@pytest.fixture
def tiny():
    """Makes recipes of a DQN that learns a few steps: `tiny(seed=3, config={...})`."""

    def make(config=(), evaluation=(), checkpointing=(), **fields):
        return Recipe(
            **{
                "agent": "dqn",
                "env": "CartPole-v1",
                "steps": 200,
                "config": {**TINY, **dict(config)},
                "evaluation": Evaluation(
                    **{"every": 80, "episodes": 3, "final_episodes": 4, **dict(evaluation)}
                ),
                "checkpointing": Checkpointing(**dict(checkpointing)),
                **fields,
            }
        )

    return make
