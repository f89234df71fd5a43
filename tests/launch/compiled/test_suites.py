"""Compiled runs on environments of pgx and brax."""

import pytest

from troupe.launch import running
from troupe.launch.experiment import Evaluation
from troupe.launch.specification.recipe import Recipe

PPO = Recipe(
    "ppo",
    "jax:pgx/minatar-breakout",
    {"hidden_sizes": (8,), "num_envs": 4, "rollout_length": 8, "num_minibatches": 2},
    steps=300,
    environment={"max_episode_steps": 50},
    evaluation=Evaluation(every=10**6, final_episodes=2),
)
SAC = Recipe(
    "sac",
    "jax:brax/inverted_pendulum",
    {
        **{"hidden_sizes": (8,), "num_envs": 2, "batch_size": 4, "min_replay_size": 20},
        "samples_per_insert": 8.0,
    },
    steps=120,
    environment={"max_episode_steps": 20, "backend": "spring"},
    evaluation=Evaluation(every=10**6, final_episodes=2),
)


@pytest.mark.long
@pytest.mark.parametrize(("package", "recipe"), [("pgx", PPO), ("brax", SAC)], ids=["pgx", "brax"])
def test_an_environment_of_a_suite_is_in_the_program(package, recipe, tmp_path):
    pytest.importorskip(package)
    launcher = running.runner("compiled", {})
    result = launcher(recipe.experiment(), tmp_path / "run", progress=False)
    assert result.learner_steps > 5
    assert result.episodes > 5
    assert result.evaluation[-1]["episodes"] == 2
