"""Trains with PureJaxRL's PPO, in the interpreter in which its libraries are installed.

It imports nothing of this package, and nothing but the standard library until it knows what to run:

    PYTHON purejaxrl.py '{"source": "PATH", "num_envs": 4, "rollout_length": 128, "steps": 1000000}'

The source is a checkout of luchris429/purejaxrl. The last line of the output is one JSON object:
env steps per second and per CPU second of one call that trains, compiled before.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from typing import Any

UNUSED = {"brax.envs.wrappers.training": ("EpisodeWrapper", "AutoResetWrapper"), "navix": ()}
"""Modules that its wrappers import and CartPole does not use."""


def run(
    source: str, num_envs: int, rollout_length: int, steps: int, seed: int = 0
) -> dict[str, Any]:
    """Compiles and times one run of so many env steps."""
    for name, members in UNUSED.items():
        _make_module(name, members)
    sys.path.insert(0, os.path.join(source, "purejaxrl"))
    import jax
    import ppo  # type: ignore[import-not-found]

    config = {
        "LR": 2.5e-4,
        "NUM_ENVS": num_envs,
        "NUM_STEPS": rollout_length,
        "TOTAL_TIMESTEPS": steps,
        "UPDATE_EPOCHS": 4,
        "NUM_MINIBATCHES": 4,
        "GAMMA": 0.99,
        "GAE_LAMBDA": 0.95,
        "CLIP_EPS": 0.2,
        "ENT_COEF": 0.01,
        "VF_COEF": 0.5,
        "MAX_GRAD_NORM": 0.5,
        "ACTIVATION": "tanh",
        "ENV_NAME": "CartPole-v1",
        "ANNEAL_LR": True,
        "DEBUG": False,
    }
    began = time.perf_counter()
    key = jax.random.PRNGKey(seed)
    train = jax.jit(ppo.make_train(config)).lower(key).compile()
    compiled = time.perf_counter()
    cpu = time.process_time()
    found = jax.block_until_ready(train(key))
    wall, cpu = time.perf_counter() - compiled, time.process_time() - cpu
    taken = steps // rollout_length // num_envs * rollout_length * num_envs
    return {
        "env_steps_per_second": taken / wall,
        "env_steps_per_cpu_second": taken / cpu,
        "env_steps": taken,
        "setup_seconds": compiled - began,
        "return": float(found["metrics"]["returned_episode_returns"][-1].mean()),
        "versions": {"python": sys.version.split()[0], "jax": jax.__version__},
    }


def _make_module(name: str, members: tuple[str, ...]) -> None:
    """Makes a module of that name, and those that it lies in; members are empty classes."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        path = ".".join(parts[:end])
        if path not in sys.modules:
            sys.modules[path] = types.ModuleType(path)
            if end > 1:
                setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], sys.modules[path])
    for member in members:
        setattr(sys.modules[name], member, type(member, (), {}))


if __name__ == "__main__":
    print(json.dumps(run(**json.loads(sys.argv[1]))))
