"""Steps of a learner that saves beside those of one that does not, in one process.

`python -m troupe.baselines.speed.learner.saving [--megabytes 1024] [--every 10] [--rounds 3]`

Both step in turns, each as long as `--every` seconds a round; the one that saves begins a
checkpoint at the start of each of its turns. It prints the ratio of their rates, in wall time and
per CPU second of all but the thread that writes, and what a save takes. The learner computes on all
cores but one, which is the writing thread's: a learner on all of them loses besides what that
thread takes of them, as on the CPUs of a machine without an accelerator.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ....agents.interfaces import Update, UpdateOutput
from ....agents.learning.learner import SGDLearner
from ....agents.replay.items import Sample, SampleInfo
from ....launch.files.checkpoints import Store
from ....launch.files.writer import CheckpointWriter
from ....launch.local import finite

_WIDTH = 2048
_CORES = sorted(os.sched_getaffinity(0))


def make_learner(megabytes: int, batch_size: int) -> SGDLearner:
    """A learner of linear layers, with moments as Adam has them.

    Args:
      megabytes: of its state.
      batch_size: B; how long a step takes.
    """
    layers = max(1, round(megabytes * (1 << 20) / (3 * 4 * _WIDTH**2)))

    def init(key: jax.Array) -> dict[str, Any]:
        keys = jax.random.split(key, layers)
        params = [jax.random.normal(one, (_WIDTH, _WIDTH)) / _WIDTH**0.5 for one in keys]
        zeros = jax.tree.map(jnp.zeros_like, params)
        return {"params": params, "mean": zeros, "square": jax.tree.map(jnp.copy, zeros)}

    def step(state: dict[str, Any], sample: Sample) -> tuple[dict[str, Any], UpdateOutput]:
        def loss(params: list[jax.Array]) -> jax.Array:
            x = sample.data
            for w in params:
                x = jnp.tanh(x @ w)
            return jnp.mean(x**2)

        value, grads = jax.value_and_grad(loss)(state["params"])
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], grads)
        square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, state["square"], grads)
        params = jax.tree.map(
            lambda p, m, s: p - 1e-4 * m / (jnp.sqrt(s) + 1e-8), state["params"], mean, square
        )
        return {"params": params, "mean": mean, "square": square}, UpdateOutput({"loss": value})

    update = Update(init, step, lambda state: {"policy": state["params"][0]})
    data = np.random.default_rng(0).normal(size=(1, batch_size, _WIDTH)).astype(np.float32)
    ones = np.ones((1, batch_size), np.float32)
    sample = Sample(SampleInfo(np.zeros((1, batch_size), np.uint64), ones, ones), data)

    def endless() -> Any:
        while True:
            yield sample

    return SGDLearner(update, endless(), jax.random.key(0))


def turn(learner: SGDLearner, seconds: float, before: Callable[[], None]) -> tuple[int, float]:
    """Steps for so many seconds.

    Args:
      learner: what steps.
      seconds: of the turn.
      before: done first, within the time of the turn.

    Returns:
      How many, and the seconds that they took.
    """
    began, steps = time.perf_counter(), 0
    before()
    while time.perf_counter() - began < seconds:
        learner.step()
        learner.metrics()  # Waits for the device.
        steps += 1
    return steps, time.perf_counter() - began


def measure(megabytes: int, every: float, rounds: int, batch_size: int) -> dict[str, Any]:
    """Rates with saves and without, taken in turns."""
    learner = make_learner(megabytes, batch_size)
    turn(learner, every / 4, lambda: None)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(learner.live_state()))
    found: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    stalls, writes = [], []
    with tempfile.TemporaryDirectory(dir=pathlib.Path.cwd()) as folder:
        writer = CheckpointWriter(Store(folder))

        def save() -> None:
            began = time.perf_counter()
            parts = writer.freeze({"learner": learner.live_state()})
            stalls.append(time.perf_counter() - began)

            def check() -> None:
                os.sched_setaffinity(0, _CORES[-1:])  # Of this thread alone.
                finite.require(parts["learner"], learner.steps)

            def end() -> None:
                writes.append((time.perf_counter() - began, time.thread_time()))

            writer.start(parts, {}, {}, check=check, then=end)

        def take_turn(name: str, before: Callable[[], None]) -> None:
            used = time.process_time()
            steps, seconds = turn(learner, every, before)
            writer.take(None)
            used = time.process_time() - used - (writes[-1][1] if name == "with" else 0.0)
            found[name].append({"wall": steps / seconds, "cpu": steps / used})

        save()
        writer.take(None)  # The memory of copies is made with the first.
        stalls.clear()
        for _ in range(rounds):
            take_turn("without", lambda: None)
            take_turn("with", save)
    pairs = list(zip(found["with"], found["without"], strict=True))
    ratios = {
        clock: [round(one[clock] / other[clock], 4) for one, other in pairs]
        for clock in ("wall", "cpu")
    }
    return {
        "device": jax.devices()[0].device_kind,
        "state_megabytes": round(size / (1 << 20)),
        "seconds_between_saves": every,
        "steps_per_second": {
            name: statistics.median(one["wall"] for one in rates) for name, rates in found.items()
        },
        "ratio": {clock: statistics.median(all_) for clock, all_ in ratios.items()},
        "ratios": ratios,
        "stall_seconds": statistics.median(stalls),
        "write_seconds": statistics.median(wall for wall, _ in writes[1:]),
        "write_cpu_seconds": statistics.median(cpu for _, cpu in writes[1:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=1024, help="of the learner's state")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between saves")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128, help="how long a step takes")
    options = parser.parse_args()
    # Threads that jax starts stay on the cores of the one that starts them.
    os.sched_setaffinity(0, _CORES[:-1] or _CORES)
    print(json.dumps(measure(**vars(options)), indent=1))


if __name__ == "__main__":
    main()
