"""A run of the command line on an environment of several agents, several actors at once."""

import json
import pathlib
import subprocess
import sys

SOURCE = pathlib.Path(__file__).parents[3] / "environments/multiagent/scripted.py"
STEPS = 600


def train(folder, *arguments):
    """Trains a small DQN in a folder that has the environment's module; returns the result."""
    (folder / "own_agents.py").write_text(SOURCE.read_text())
    words = [
        *("train", "dqn", "--env", "pettingzoo:own_agents:Scripted", "--steps", STEPS),
        *("--actors", 2, "--config.num_envs", 6, "--config.hidden_sizes", 8),
        *("--config.min_replay_size", 50, "--config.samples_per_insert", 4),
        *("--evaluation-episodes", 2, "--final-evaluation-episodes", 4, "--out", "run"),
    ]
    command = [sys.executable, "-m", "troupe", *map(str, words), *arguments]
    process = subprocess.run(
        command, check=False, cwd=folder, capture_output=True, text=True, timeout=550
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return json.loads((folder / "run" / "result.json").read_text())


def check(result):
    """Counters are of actions, and evaluations are of whole episodes of each agent."""
    assert STEPS - 6 < result["actor_steps"] <= STEPS
    assert result["learner_steps"] > 0
    # Eight actions make an episode of each of the three; two actors have two environments each.
    assert abs(result["episodes"] - 3 * result["actor_steps"] / 8) <= 12
    last = result["evaluation"][-1]
    assert last["episodes"] == 4
    assert (last["info/return_a"], last["info/return_b"], last["info/return_c"]) == (3, 50, 45)
    assert last["info/team_return"] == 98
