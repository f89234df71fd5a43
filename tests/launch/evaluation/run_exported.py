"""Plays an exported policy without troupe: `python run_exported.py FILE ENV SEED...`

Prints the return of one episode for each seed, as a line of JSON.
"""

import json
import sys
import zipfile

import gymnasium
import numpy as np
from jax import export


def main(path, env_id, *seeds):
    with zipfile.ZipFile(path) as file:
        about = json.loads(file.read("policy.json"))
        init, act, reset = (
            export.deserialize(bytearray(file.read(name))).call for name in ("init", "act", "reset")
        )
    env, returns = gymnasium.make(env_id), []
    state = init(np.uint32(0))
    for seed in map(int, seeds):
        state, total, done = reset(state), 0.0, False
        observation, _ = env.reset(seed=seed)
        while not done:
            action, state = act(np.asarray(observation, about["observation"]["dtype"]), state)
            observation, reward, terminated, truncated, _ = env.step(np.asarray(action))
            total, done = total + float(reward), terminated or truncated
        returns.append(total)
    assert not any(name.partition(".")[0] in ("troupe", "haiku", "optax") for name in sys.modules)
    print(json.dumps(returns))


if __name__ == "__main__":
    main(*sys.argv[1:])
