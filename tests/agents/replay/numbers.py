"""A replay's plainest case: one environment whose observation is the count of its rows."""

from __future__ import annotations

import dm_env
import numpy as np
from dm_env import specs

from troupe.agents.replay import EmbeddedReplay
from troupe.environments.specs import EnvironmentSpec

NUMBERS = EnvironmentSpec(
    specs.Array((1,), np.float32),
    specs.Array((), np.int32),
    specs.Array((), np.float32),
    specs.Array((), np.float32),
)


def fill(replay: EmbeddedReplay, steps: int, length: int = 5, start: int = 0) -> None:
    """One environment whose observation is the count of its rows."""
    adder = replay.adder()
    number, left = start, 0
    for _ in range(steps):
        if not left:
            adder.add_first(dm_env.restart(np.full(1, number, np.float32)))
            number, left = number + 1, length
        left -= 1
        observation = np.full(1, number, np.float32)
        step = dm_env.transition if left else dm_env.termination
        timestep = step(np.float32(number), observation)
        adder.add(np.int32(number), timestep._replace(discount=np.float32(timestep.discount)))
        number += 1
