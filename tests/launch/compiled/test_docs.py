"""docs/compiled.md: its code runs, and its environment is trained on as it says."""

import re

from troupe.launch import running
from troupe.launch.experiment import Evaluation
from troupe.launch.specification.recipe import Recipe

PPO = Recipe(
    "ppo",
    "jax:landing:landing",
    {"hidden_sizes": (8,), "num_envs": 4, "rollout_length": 8, "num_minibatches": 2},
    steps=300,
    environment={"wind": 0.1, "max_episode_steps": 30},
    evaluation=Evaluation(every=10**6, final_episodes=2),
)


def test_its_environment_is_short_and_runs(documented, pages, tmp_path):
    files, scripts = pages("compiled.md")
    assert len(files["landing.py"].splitlines()) <= 60
    for script in scripts:
        exec(compile(script, "compiled.md", "exec"), {})
    result = running.runner("compiled", {})(PPO.experiment(), tmp_path / "run", progress=False)
    assert result.learner_steps > 5
    assert result.episodes > 5


def test_its_commands_name_what_there_is(documented, pages):
    text = (pages.__globals__["DOCS"] / "compiled.md").read_text()
    ids = re.findall(r"^troupe train \w+ --env (jax:landing\S*) --launch compiled", text, re.M)
    assert ids == [PPO.env, PPO.env]
