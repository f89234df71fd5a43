"""Rates of the two replays, and of the learner's reading beside Reverb's own dataset.

    python -m troupe.baselines.speed.laboratory.replay --json

The items are transitions of four floats, as of CartPole. All figures of one call are measured in
turn; judge by the ratios, and by the rate of a bare step of CartPole beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dm_env
import gymnasium
import numpy as np

from ....agents.replay import EmbeddedReplay, ReplaySpec, Transitions
from ....environments import EnvironmentSpec, specs

_ENVIRONMENT = EnvironmentSpec(
    observations=specs.Array((4,), np.float32),
    actions=specs.DiscreteArray(2),
    rewards=specs.reward_spec(),
    discounts=specs.discount_spec(),
)


def _spec(batch_size: int, prioritised: bool) -> ReplaySpec:
    exponent = 0.6 if prioritised else None
    return ReplaySpec(Transitions(), batch_size, 100_000, priority_exponent=exponent)


def _fill(add: Callable[..., None], add_first: Callable[..., None], rows: int, envs: int) -> float:
    """Writes rows of vectors of `envs`; returns seconds."""
    kinds, ones = np.ones(envs, np.int32), np.ones(envs, np.float32)
    observation = np.random.default_rng(0).random((envs, 4)).astype(np.float32)
    first = dm_env.TimeStep(0 * kinds, 0 * ones, ones, observation)
    mid = dm_env.TimeStep(kinds, ones, ones, observation)
    start = time.perf_counter()
    add_first(first)
    for _ in range(rows // envs):
        add(kinds, mid)
    return time.perf_counter() - start


def _microseconds(call: Callable[[], Any], calls: int = 1000) -> float:
    """The median duration of a call."""
    durations = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations) * 1e6


def embedded(batch_size: int = 64) -> dict[str, float]:
    """Microseconds of the embedded replay with 100,000 items, and of a bare step of CartPole."""
    outcome = {}
    environment = gymnasium.make("CartPole-v1").unwrapped
    environment.reset(seed=0)

    def step() -> None:
        if environment.step(0)[2]:
            environment.reset()

    outcome["bare_step"] = _microseconds(step, 5000)
    for prioritised in (False, True):
        kind = "prioritised" if prioritised else "uniform"
        replay = EmbeddedReplay(_spec(batch_size, prioritised), _ENVIRONMENT, num_envs=1)
        adder = replay.adder()
        outcome[f"{kind}_add"] = _fill(adder.add, adder.add_first, 100_000, 1) / 100_000 * 1e6
        for batches, name in ((1, "batch"), (8, "batch_of_8_at_once")):
            learn = functools.partial(_learn, replay, batches)
            outcome[f"{kind}_{name}"] = _microseconds(learn) / batches
    return outcome


def _learn(replay: EmbeddedReplay, batches: int) -> None:
    """Draws batches and, where there are priorities, writes new ones back."""
    info = replay.sample(batches).info
    if replay.spec.priority_exponent is not None:
        replay.update_priorities(info.keys, info.probabilities)


def reading(
    batch_size: int = 64, steps_per_sample: int = 1, seconds: float = 3.0, rounds: int = 3
) -> dict[str, float]:
    """Batches a second from a Reverb server, as the learner reads and as Reverb's dataset does.

    The dataset is read bare: its batches are counted, and neither converted nor looked at.
    """
    from ....agents.replay.reverb import ReverbAdder, ReverbReplay

    spec = _spec(batch_size, True)
    with _server(batch_size) as address:
        arguments = spec, _ENVIRONMENT, (), address
        adder = ReverbAdder(*arguments, num_envs=4)
        written = _fill(adder.add, adder.add_first, 8000, 4)
        adder.flush()
        bare, ours = [], []
        for _ in range(rounds):
            bare.append(_bare_rate(address, batch_size * steps_per_sample, seconds))
            reader = ReverbReplay(*arguments, steps_per_sample=steps_per_sample)
            ours.append(_rate(reader.dataset(steps_per_sample), seconds))
            reader.close()
        adder.close()
    return {
        "items_written_per_second": 8000 / written,
        "bare_batches_per_second": statistics.median(bare) * steps_per_sample,
        "batches_per_second": statistics.median(ours) * steps_per_sample,
        "ratio": statistics.median(mine / other for mine, other in zip(ours, bare, strict=True)),
    }


def _rate(batches: Iterator[Any], seconds: float) -> float:
    next(batches)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        next(batches)
        count += 1
    return count / (time.perf_counter() - start)


def _bare_rate(address: str, count: int, seconds: float) -> float:
    import reverb

    dataset = reverb.TrajectoryDataset.from_table_signature(
        address, "replay", max_in_flight_samples_per_worker=2 * count
    )
    return _rate(iter(dataset.batch(count)), seconds)


@contextlib.contextmanager
def _server(batch_size: int) -> Iterator[str]:
    """A server in a process of its own, as in a distributed run."""
    from ....launch.distributed import addresses

    (port,) = addresses.free_ports(1)
    command = [
        sys.executable,
        "-m",
        f"{__package__}.replay",
        "--serve",
        str(port),
        "--batch-size",
        str(batch_size),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            if b"ready\n" not in process.stdout:  # Reverb may print before it.
                raise RuntimeError("the Reverb server did not start.")
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def _serve(port: int, batch_size: int) -> None:
    from ....agents.replay.reverb import ReverbServer
    from ....launch.distributed.addresses import LOOPBACK
    from ....launch.distributed.engines.launchpad import servers

    with servers.kept_to(LOOPBACK):
        server = ReverbServer(_spec(batch_size, True), _ENVIRONMENT, (), f"{LOOPBACK}:{port}")
    print("ready", flush=True)
    threading.Event().wait()
    server.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Prints all figures."""
    parser = argparse.ArgumentParser(prog="python -m troupe.baselines.speed.laboratory.replay")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps-per-sample", type=int, default=1, help="batches read at once")
    parser.add_argument("--embedded-only", action="store_true")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        _serve(args.serve, args.batch_size)
        return 0
    outcome: dict[str, Any] = {"embedded_microseconds": embedded(args.batch_size)}
    if not args.embedded_only:
        outcome["reverb"] = reading(args.batch_size, args.steps_per_sample)
    if args.json:
        print(json.dumps(outcome, indent=2))
        return 0
    for name, microseconds in outcome["embedded_microseconds"].items():
        print(f"{name.replace('_', ' '):36} {microseconds:8.1f} us")
    for name, value in outcome.get("reverb", {}).items():
        print(f"{name.replace('_', ' '):36} {value:8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
