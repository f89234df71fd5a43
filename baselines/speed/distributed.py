"""How fast distributed runs are: actors, and what the variable server costs them and the learner.

    python -m troupe.baselines.speed dqn --launch processes --json

All figures of one call are measured in turn on the same machine, under what else it had to do;
judge by the ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import launchpad as lp
import numpy as np

from ...agents.variables.board import FileShelf, shared_folder
from ...agents.variables.publisher import Publisher
from ...agents.variables.reader import VariableReader
from ...launch import Checkpointing, Evaluation, launch, make_program
from ...launch.distributed.engines.launchpad import launcher
from ...launch.distributed.engines.launchpad.nodes import ServiceNode, WorkerNode
from ...launch.distributed.roles import calls
from ...launch.distributed.roles.variables import VariableRole
from ...launch.distributed.supervision import role
from ...launch.distributed.supervision.role import Settings
from ...launch.request.recipe import Recipe
from ...launch.telling.metrics import read

_QUIET = {"samples_per_insert": 1.0, "min_replay_size": 200, "steps_per_dispatch": 1}


def actor_rate(agent: str, step_ms: float, actors: int, seconds: float) -> dict[str, float]:
    """Environment steps a second of a whole run whose environments sleep at each step.

    Args:
      agent: name of the agent.
      step_ms: what a step sleeps.
      actors: how many actors, of one environment each.
      seconds: about how long they act.

    Returns:
      `steps_per_second`, over the second half of the run, and `first_step_seconds`, from the start
      of the program to the first counted steps.
    """
    out = pathlib.Path(tempfile.mkdtemp(prefix="speed-"))
    try:
        recipe = Recipe(
            agent,
            "fake/discrete",
            steps=int(actors * seconds * 1000 / (step_ms + 0.3)),
            config={"num_envs": 1, **_QUIET},
            environment={"step_ms": step_ms, "episode_lengths": (200,)},
            evaluation=Evaluation(every=10**9, episodes=1, final_episodes=1, num_envs=1),
            checkpointing=Checkpointing(every_seconds=1e6, replay="never"),
            launch="processes",
        )
        program = make_program(recipe.experiment(), out / "run", actors=actors)
        launch(program, "processes")
        rows = [row for row in read(out / "run" / "metrics.jsonl", "train") if row["actor_steps"]]
        budget = recipe.steps
        later = [row for row in rows if 0.5 * budget <= row["actor_steps"] < budget]
        first, last = later[0], later[-1]
        steps = last["actor_steps"] - first["actor_steps"]
        return {
            "steps_per_second": steps / (last["wall_seconds"] - first["wall_seconds"]),
            "first_step_seconds": rows[0]["wall_seconds"] - rows[0]["train_seconds"],
        }
    finally:
        shutil.rmtree(out, ignore_errors=True)


class _Reader:
    """Keeps up with the variables, and writes down when the first two versions arrived."""

    def __init__(self, variables: Any, index: int):
        self._variables, self._index = variables, index

    def run(self) -> None:
        reader = VariableReader(self._variables)
        arrived: dict[int, float] = {}
        # No more than two, and then at rest: watching would cost more than reading does.
        while not role.pause(0.02 if len(arrived) < 2 else 1.0):
            if reader.version >= 0 and reader.version not in arrived and len(arrived) < 2:
                arrived[reader.version] = time.monotonic()
                _write(f"reader-{self._index}", {"pid": os.getpid(), **arrived})


class _Sender:
    """Publishes one large version when all readers run, and measures calls that find nothing."""

    def __init__(self, variables: Any, num_bytes: int, readers: int):
        self._variables, self._num_bytes, self._readers = variables, num_bytes, readers

    def run(self) -> None:
        folder = role.current().workspace / "variables"
        folder.mkdir()
        publisher = Publisher(FileShelf(folder), self._variables)
        publisher.offer({"policy": np.zeros(1, np.float32)})
        while sum(_has(f"reader-{i}", 0) for i in range(self._readers)) < self._readers:
            calls.check_stop()
            time.sleep(0.05)
        large = {f"w{i}": np.ones(self._num_bytes // 32, np.float32) for i in range(8)}
        began = time.monotonic()
        publisher.offer({"policy": large})
        while sum(_has(f"reader-{i}", 1) for i in range(self._readers)) < self._readers:
            calls.check_stop()
            time.sleep(0.02)
        times = []
        for _ in range(500):
            start = time.perf_counter()
            self._variables.get(publisher.version, False)
            times.append(time.perf_counter() - start)
        report = {"began": began, "gathers": publisher.gathers, "call": statistics.median(times)}
        _write("sender", report)
        while not role.pause(0.1):
            pass


class _Steps:
    """Takes gradient-like steps and offers what is read of them, as a learner does.

    In turn without readers, whose processes are stopped, and with them.
    """

    def __init__(self, variables: Any, readers: int, rounds: int, seconds: float):
        self._variables, self._readers = variables, readers
        self._rounds, self._seconds = rounds, seconds

    def run(self) -> None:
        folder = role.current().workspace / "variables"
        folder.mkdir()
        self._publisher = Publisher(FileShelf(folder), self._variables)
        self._weights = {f"w{i}": jnp.ones((256, 256)) for i in range(4)}
        self._step = jax.jit(
            lambda weights: jax.tree.map(lambda w: jnp.tanh(w @ w.T) * 0.01 + w, weights)
        )
        self._rate(0.0)
        names = [f"reader-{i}" for i in range(self._readers)]
        while not all(_has(name, 0) for name in names):
            calls.check_stop()
            time.sleep(0.05)
        pids = [json.loads((role.current().workspace / name).read_text())["pid"] for name in names]
        rates: dict[str, list[float]] = {"alone": [], "with_readers": []}
        for _ in range(self._rounds):
            for side, number in (("alone", signal.SIGSTOP), ("with_readers", signal.SIGCONT)):
                for pid in pids:
                    os.kill(pid, number)
                self._rate(0.2 * self._seconds)  # What the signal itself stirs up is left out.
                rates[side].append(self._rate(self._seconds))
        _write("steps", rates)
        while not role.pause(0.1):
            pass

    def _rate(self, seconds: float) -> float:
        """Steps a second, over so many of them and at least one step."""
        count, began = 0, time.monotonic()
        while count == 0 or time.monotonic() < began + seconds:
            self._weights = jax.block_until_ready(self._step(self._weights))
            if self._publisher.wanted:
                self._publisher.offer({"policy": self._weights})
            role.pause(0.0)
            count += 1
        return count / (time.monotonic() - began)


def variables_cost(num_bytes: int = 100_000_000, readers: int = 8) -> dict[str, float]:
    """How long a version takes to reach its readers, and a call that finds nothing newer."""
    with _running(_Sender, readers, num_bytes, readers) as answer:
        report = answer("sender")
        arrivals = [answer(f"reader-{i}")["1"] for i in range(readers)]
    return {
        "megabytes": num_bytes / 1e6,
        "readers": readers,
        "seconds_to_all": max(arrivals) - report["began"],
        "gathers": report["gathers"] - 1,  # Without the small one that readers began with.
        "milliseconds_without_news": 1e3 * report["call"],
    }


def learner_rates(
    readers: int = 16, rounds: int = 15, seconds: float = 1.0
) -> dict[str, float | list[float]]:
    """Steps a second of a learner that offers each of them, alone and with readers.

    Args:
      readers: how many.
      rounds: of so many seconds alone and as many with readers, in turn: the machine's other work
        then meets both.
      seconds: of one measurement.

    Returns:
      `alone` and `with_readers`, medians, and `ratio`, the median of the rounds' `ratios`.
    """
    with _running(_Steps, readers, readers, rounds, seconds) as answer:
        rates = answer("steps")
    ratios = [b / a for a, b in zip(rates["alone"], rates["with_readers"], strict=True)]
    return {
        "alone": statistics.median(rates["alone"]),
        "with_readers": statistics.median(rates["with_readers"]),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }


@contextlib.contextmanager
def _running(
    worker: Any, readers: int, *arguments: Any
) -> Iterator[Callable[[str], dict[str, Any]]]:
    """A program of a variable server, a worker and readers; yields what reads their answers."""
    program = lp.Program("speed")
    node = ServiceNode("variable server", Settings(), VariableRole, threads=readers + 4)
    variables = program.add_node(node, label="variables")
    program.add_node(WorkerNode(Settings(), worker, variables, *arguments), label="worker")
    for index in range(readers):
        program.add_node(WorkerNode(Settings(), _Reader, variables, index), label="reader")
    workspace = shared_folder("speed")
    supervisor = launcher.start(program, "processes", workspace, workspace)

    def answer(name: str, seconds: float = 120.0) -> dict[str, Any]:
        """What a role wrote down."""
        deadline = time.monotonic() + seconds
        while not (workspace / name).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {name} within {seconds:g} s.")
            supervisor.poll()
            time.sleep(0.05)
        return json.loads((workspace / name).read_text())

    try:
        yield answer
    finally:
        supervisor.stop()
        shutil.rmtree(workspace, ignore_errors=True)


def _write(name: str, values: dict[Any, Any]) -> None:
    path = role.current().workspace / name
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(values))
    temporary.rename(path)


def _has(name: str, version: int) -> bool:
    try:
        return str(version) in json.loads((role.current().workspace / name).read_text())
    except FileNotFoundError:
        return False


def measure(
    agent: str,
    step_ms: Sequence[float] = (1.0, 5.0, 20.0),
    seconds: float = 8.0,
    rounds: int = 3,
) -> dict[str, Any]:
    """All figures; those of actors as medians of so many rounds of both runs."""
    acting = []
    for each in step_ms:
        runs = [
            tuple(actor_rate(agent, each, actors, seconds) for actors in (1, 8))
            for _ in range(rounds)
        ]
        one, eight = (
            statistics.median(run["steps_per_second"] for run in side)
            for side in zip(*runs, strict=True)
        )
        ratios = [b["steps_per_second"] / a["steps_per_second"] for a, b in runs]
        acting.append(
            {
                "step_ms": each,
                "one_actor": one,
                "eight_actors": eight,
                "ratio": statistics.median(ratios),
                "ratios": ratios,
                "first_step_seconds": max(b["first_step_seconds"] for _, b in runs),
            }
        )
    return {"acting": acting, "variables": variables_cost(), "learner": learner_rates()}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints all figures."""
    parser = argparse.ArgumentParser(prog="python -m troupe.baselines.speed", description=__doc__)
    parser.add_argument("agent")
    parser.add_argument("--launch", choices=("processes",), default="processes")
    parser.add_argument("--step-ms", type=float, nargs="+", default=(1.0, 5.0, 20.0), metavar="MS")
    parser.add_argument("--seconds", type=float, default=8.0, help="that actors act, at each")
    parser.add_argument("--rounds", type=int, default=3, help="of each pair of runs (default 3)")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    args = parser.parse_args(argv)
    outcome = measure(args.agent, args.step_ms, args.seconds, args.rounds)
    if args.json:
        print(json.dumps(outcome, indent=2))
        return 0
    for row in outcome["acting"]:
        print(
            f"{row['step_ms']:5g} ms a step: {row['one_actor']:8,.0f} steps/s of one actor, "
            f"{row['eight_actors']:8,.0f} of eight ({row['ratio']:.2f} times)"
        )
    variables, learner = outcome["variables"], outcome["learner"]
    print(
        f"{variables['megabytes']:g} MB to {variables['readers']} readers in "
        f"{variables['seconds_to_all']:.2f} s and {variables['gathers']} gather; a call without "
        f"news takes {variables['milliseconds_without_news']:.2f} ms"
    )
    print(f"a learner with 16 readers steps at {learner['ratio']:.2f} of its rate alone")
    return 0
