"""Steps of a learner that publishes after each of them beside those of one that does not.

`python -m troupe.baselines.speed.learner.publishing [--units 512] [--batch-size 1024] [--rounds 9]`

Both are a DQN of two hidden layers, which take turns in one process. It prints the ratio of the
seconds per step, in wall time and in CPU time of the thread that steps. The learner computes on all
cores but one, which is the publisher's thread's: a learner on all of them loses besides what that
thread takes of them, as on the CPUs of a machine without an accelerator.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import threading
import time
from typing import Any

import jax
import numpy as np

from ....agents.dqn import DQNBuilder, DQNConfig
from ....agents.learning.learner import SGDLearner
from ....agents.replay.items import Sample, SampleInfo, Transition
from ....agents.variables.publisher import Publisher
from ....agents.variables.server import VariableServer
from ....agents.variables.version_board import FileShelf, shared_folder
from ....environments import EnvironmentSpec, specs

_FEATURES, _ACTIONS = 64, 6
_SPEC = EnvironmentSpec(
    observations=specs.Array((_FEATURES,), np.float32),
    actions=specs.DiscreteArray(_ACTIONS),
    rewards=specs.reward_spec(),
    discounts=specs.discount_spec(),
)
_PATIENCE = 30.0
"""Seconds that the newest offer may take to be written."""
_CORES = sorted(os.sched_getaffinity(0))


def make_learner(units: int, batch_size: int) -> SGDLearner:
    """A DQN that learns from one batch for ever.

    Args:
      units: of each hidden layer.
      batch_size: B.
    """
    builder = DQNBuilder(
        DQNConfig(hidden_sizes=(units, units), batch_size=batch_size, steps_per_dispatch=1)
    )
    random, shape = np.random.default_rng(0), (1, batch_size)

    def observations() -> np.ndarray:
        return random.normal(size=(*shape, _FEATURES)).astype(np.float32)

    ones = np.ones(shape, np.float32)
    data = Transition(
        observation=observations(),
        action=random.integers(0, _ACTIONS, shape).astype(np.int32),
        reward=ones,
        discount=ones,
        next_observation=observations(),
    )
    sample = Sample(SampleInfo(np.zeros(shape, np.uint64), ones, ones), data)
    feed = itertools.repeat(sample)
    return builder.make_learner(jax.random.key(0), builder.make_networks(_SPEC), _SPEC, feed)


def turn(learner: SGDLearner, steps: int, publisher: Publisher | None) -> dict[str, float]:
    """Takes steps, and offers what they come to where there is a publisher.

    Returns:
      Seconds per step, "wall" and "cpu".
    """
    wall, cpu = time.perf_counter(), time.thread_time()
    for _ in range(steps):
        learner.step()
        if publisher is not None:
            publisher.offer({"policy": learner.get_variables(["policy"])[0]})
        learner.metrics()  # Waits for the device.
    return {
        "wall": (time.perf_counter() - wall) / steps,
        "cpu": (time.thread_time() - cpu) / steps,
    }


def measure(units: int, batch_size: int, steps: int, rounds: int) -> dict[str, Any]:
    """Seconds per step with and without publishing, taken in turns, medians over the rounds."""
    learner = make_learner(units, batch_size)
    folder = shared_folder("publishing")
    publisher = Publisher(FileShelf(folder), VariableServer(), period=0.0)
    (thread,) = (one for one in threading.enumerate() if one.name == "publisher")
    assert thread.native_id is not None
    os.sched_setaffinity(thread.native_id, _CORES[-1:])
    try:
        for one in (publisher, None):  # Both are compiled before they are measured.
            turn(learner, 3, one)
        publisher.flush(_PATIENCE)
        found: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
        gathers = publisher.gathers
        for number in range(rounds):
            pair: list[tuple[str, Publisher | None]] = [("without", None), ("with", publisher)]
            for name, one in pair[:: 1 if number % 2 else -1]:
                found[name].append(turn(learner, steps, one))
                publisher.flush(_PATIENCE)  # What is left to write is not of the next turn.
        gathers = publisher.gathers - gathers
    finally:
        publisher.close()
        shutil.rmtree(folder)
    pairs = list(zip(found["with"], found["without"], strict=True))
    ratios = {
        clock: [round(one[clock] / other[clock], 4) for one, other in pairs]
        for clock in ("wall", "cpu")
    }
    (policy,) = learner.get_variables(["policy"])
    return {
        "device": jax.devices()[0].device_kind,
        "published_megabytes": round(sum(leaf.nbytes for leaf in jax.tree.leaves(policy)) / 1e6, 2),
        "seconds_per_step": {
            name: round(statistics.median(one["wall"] for one in turns), 6)
            for name, turns in found.items()
        },
        "written_per_step": round(gathers / (steps * rounds), 3),
        "ratio": {clock: statistics.median(all_) for clock, all_ in ratios.items()},
        "ratios": ratios,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--units", type=int, default=512, help="of each of two hidden layers")
    parser.add_argument("--batch-size", type=int, default=1024, help="how long a step takes")
    parser.add_argument("--steps", type=int, default=20, help="of a turn")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    # Threads that jax starts stay on the cores of the one that starts them.
    os.sched_setaffinity(0, _CORES[:-1] or _CORES)
    print(json.dumps(measure(**vars(options)), indent=1))


if __name__ == "__main__":
    main()
