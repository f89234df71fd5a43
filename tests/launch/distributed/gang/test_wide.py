"""Agents with a memory, on eight devices of one process and of two, learn what one device learns.

With TROUPE_FULL=1 of more agents, parameters, layouts and steps: `-k 100M` takes those of 100
million parameters.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from troupe.launch.distributed import addresses

from . import wide

FULL = bool(os.environ.get("TROUPE_FULL"))
TOLERANCE = 1e-5
"""Of the norm of each array, for each gradient step."""
STEPS, FUSED = 200 if FULL else 20, 5
RANKS, EACH = 2, 4
"""Processes of a gang, and devices of each."""
LAYOUTS = (
    ("data=8", "batch:data"),
    ("data=4,model=2", "batch:data,megatron:model"),
    ("data=8", "batch:data,zero3:data"),
    ("data=4,model=2", "batch:data,megatron:model,zero3:data"),
    ("data=4,model=2", "auto:data+model"),
)
SMALL = {"features": 6, "hidden_sizes": (16,)}
ROLLOUTS = {**SMALL, "core": "transformer", "memory_length": 4, "num_envs": 8}
IMPALA = {**ROLLOUTS, "rollout_length": 6}
PPO = {**ROLLOUTS, "rollout_length": 6, "num_minibatches": 1, "num_epochs": 2}
R2D2 = {
    **{**SMALL, "batch_size": 8, "sequence_length": 5, "sequence_period": 5},
    **{"burn_in": 2, "n_step": 2},
}
# Agent, its sizes, and parameters.
AGENTS = {
    "dqn": ("dqn", {**SMALL, "batch_size": 8}, 0),
    "impala, 1M": ("impala", {**IMPALA, "core_size": 200}, 1e6),
    "ppo, 1M": ("ppo", {**PPO, "core_size": 200}, 1e6),
    "r2d2, 1M": ("r2d2", {**R2D2, "core_size": 496}, 1e6),
    "impala, 10M": ("impala", {**IMPALA, "core_size": 384, "core_layers": 3}, 1e7),
    "ppo, 10M": ("ppo", {**PPO, "core_size": 384, "core_layers": 3}, 1e7),
    "r2d2, 10M": ("r2d2", {**R2D2, "core_size": 1584}, 1e7),
    "impala, 100M": ("impala", {**IMPALA, "core_size": 1024, "core_layers": 4}, 1e8),
    "ppo, 100M": ("ppo", {**PPO, "core_size": 1024, "core_layers": 4}, 1e8),
    "r2d2, 100M": ("r2d2", {**R2D2, "core_size": 5000}, 1e8),
}
CHOSEN = [*AGENTS] if FULL else ["impala, 1M"]


def assert_near(got, wanted, steps=STEPS):
    assert got.keys() == wanted.keys()
    for path, value in wanted.items():
        if np.issubdtype(value.dtype, np.floating):
            error, norm = np.linalg.norm(got[path] - value), np.linalg.norm(value)
            assert error <= steps * TOLERANCE * norm, f"{path}: {error:.3g} of {norm:.3g}"
        else:
            np.testing.assert_array_equal(got[path], value, path)


def run_ranks(folder, case):
    """Runs a gang, and returns the outcome of each rank."""
    address = f"{addresses.LOOPBACK}:{addresses.free_ports(1)[0]}"
    flags = f"--xla_force_host_platform_device_count={EACH}"
    files = [folder / f"{rank}.npz" for rank in range(RANKS)]
    command = [sys.executable, wide.__file__]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(RANKS), address, str(file), json.dumps(case._asdict())],
            env={**os.environ, "XLA_FLAGS": flags},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, file in enumerate(files)
    ]
    try:
        # Rank 0 stays until nobody holds its input, which is asked of it last.
        said = [
            process.communicate(timeout=3_600 if FULL else 300)[0] for process in processes[::-1]
        ]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [0] * RANKS, "\n".join(said)
    return [dict(np.load(file)) for file in files]


@pytest.mark.long
@pytest.mark.parametrize("name", CHOSEN)
def test_a_gang_and_one_process_of_eight_devices_learn_what_one_device_does(name, tmp_path):
    agent, sizes, parameters = AGENTS[name]
    layouts = LAYOUTS if FULL else LAYOUTS[3:4]
    case = wide.Case(agent, sizes, list(layouts), STEPS, FUSED)
    assert wide.num_parameters(case) >= parameters
    alone = wide.learn(case)
    for layout in layouts:
        assert_near(wide.learn(case, layout), alone)
    by_hand = [layout for layout in layouts if "auto" not in layout[1]]
    first, second = run_ranks(tmp_path, case._replace(layouts=by_hand))
    for number in range(len(by_hand)):
        prefix = str(number)
        ours, theirs = (
            {path[1:]: value for path, value in found.items() if path.startswith(prefix)}
            for found in (first, second)
        )
        assert_near(ours, theirs, steps=0)
        assert_near(ours, alone)
