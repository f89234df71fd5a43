"""Roles that measure, of no agent: deployments of them that any engine runs.

Each writes what it found into a file of a folder that all of a measurement know.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from ...agents.replay.items import ReplaySpec, Transitions
from ...agents.variables.version_board import shared_folder
from ...environments import EnvironmentSpec, specs
from ...launch.distributed.deployment import Deployment, Reference, RolePlan
from ...launch.distributed.roles import rpc
from ...launch.distributed.roles.variables import VariableRole
from ...launch.distributed.supervision import role
from ...launch.distributed.supervision.role import Settings
from ...launch.roles import Roles
from .wholes import experiment

_ENVIRONMENT = EnvironmentSpec(
    observations=specs.Array((4,), np.float32),
    actions=specs.DiscreteArray(2),
    rewards=specs.reward_spec(),
    discounts=specs.discount_spec(),
)
_SPEC = ReplaySpec(Transitions(), 64, 100_000, priority_exponent=0.6)
_NUM_ENVS, _ITEMS = 4, 8000
_BOARD = Reference("variables", "board")


class _Noted:
    """A role that writes down what it finds."""

    def __init__(self, answers: str):
        self._answers = pathlib.Path(answers)

    def note(self, name: str, values: dict[Any, Any]) -> None:
        temporary = self._answers / f".{name}-{os.getpid()}"
        temporary.write_text(json.dumps(values))
        temporary.rename(self._answers / name)

    def noted(self, name: str) -> dict[str, Any]:
        """Returns the values that another role has found; nothing so far."""
        try:
            return json.loads((self._answers / name).read_text())
        except FileNotFoundError:
            return {}

    def wait_for(self, *names: str, key: str | None = None) -> None:
        """Until all of these have written something down, and a key in it."""
        while not all((key in found if key else found) for found in map(self.noted, names)):
            rpc.check_stop()
            time.sleep(0.02)

    def rest(self) -> None:
        while not role.pause(0.1):
            pass


class _Reader(_Noted):
    """Keeps up with the variables, and writes down when the first two versions arrived."""

    def __init__(self, answers: str, board: Any, index: int):
        super().__init__(answers)
        self._board, self._index = board, index

    def run(self) -> None:
        reader = self._board.reader()
        arrived: dict[int, float] = {}
        # No more than two, and then at rest: watching would cost more than reading does.
        while not role.pause(0.02 if len(arrived) < 2 else 1.0):
            if reader.version >= 0 and reader.version not in arrived and len(arrived) < 2:
                reader.get_variables(["policy"])
                arrived[reader.version] = time.monotonic()
                self.note(f"reader-{self._index}", {"pid": os.getpid(), **arrived})


class _Sender(_Noted):
    """Publishes one large version when all readers run, and measures calls that find nothing."""

    def __init__(self, answers: str, board: Any, variables: Any, num_bytes: int, readers: int):
        super().__init__(answers)
        self._board, self._variables = board, variables
        self._num_bytes, self._names = num_bytes, [f"reader-{i}" for i in range(readers)]

    def run(self) -> None:
        publisher = self._board.publisher()
        publisher.offer({"policy": np.zeros(1, np.float32)})
        self.wait_for(*self._names, key="0")
        large = {f"w{i}": np.ones(self._num_bytes // 32, np.float32) for i in range(8)}
        began = time.monotonic()
        publisher.offer({"policy": large})
        self.wait_for(*self._names, key="1")
        times = []
        for _ in range(500):
            start = time.perf_counter()
            self._variables.get(publisher.version, False)
            times.append(time.perf_counter() - start)
        gathers, call = publisher.gathers, statistics.median(times)
        self.note("sender", {"began": began, "gathers": gathers, "call": call})
        self.rest()


class _Steps(_Noted):
    """Takes gradient-like steps and offers what is read of them, as a learner does.

    In turn without readers, whose processes are stopped, and with them.
    """

    def __init__(self, answers: str, board: Any, readers: int, rounds: int, seconds: float):
        super().__init__(answers)
        self._board, self._names = board, [f"reader-{i}" for i in range(readers)]
        self._rounds, self._seconds = rounds, seconds

    def run(self) -> None:
        self._publisher = self._board.publisher()
        self._weights = {f"w{i}": jnp.ones((256, 256)) for i in range(4)}
        self._step = jax.jit(
            lambda weights: jax.tree.map(lambda w: jnp.tanh(w @ w.T) * 0.01 + w, weights)
        )
        self._rate(0.0)
        while not all(map(self.noted, self._names)):
            self._rate(0.05)
        pids = [self.noted(name)["pid"] for name in self._names]
        rates: dict[str, list[float]] = {"alone": [], "with_readers": []}
        for _ in range(self._rounds):
            for side, number in (("alone", signal.SIGSTOP), ("with_readers", signal.SIGCONT)):
                for pid in pids:
                    os.kill(pid, number)
                self._rate(0.2 * self._seconds)  # What the signal itself stirs up is left out.
                rates[side].append(self._rate(self._seconds))
        self.note("steps", rates)
        self.rest()

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


class _Table(_Noted):
    """Serves a replay."""

    def __init__(self, answers: str, service: Any, steps_per_sample: int):
        super().__init__(answers)
        self._service, self._k = service, steps_per_sample

    def run(self) -> None:
        made = self._service.server(self._answers / "replay", None)
        replay = made(_SPEC, _ENVIRONMENT, (), num_envs=_NUM_ENVS, seed=0, steps_per_sample=self._k)
        self.rest()
        replay.close()


class _Writer(_Noted):
    """Fills it."""

    def __init__(self, answers: str, service: Any):
        super().__init__(answers)
        self._service = service

    def run(self) -> None:
        options = {"num_envs": _NUM_ENVS, "seed": 0, "steps_per_sample": 1}
        replay = self._service.writer()(_SPEC, _ENVIRONMENT, (), **options)
        adder = replay.adder()
        kinds, ones = np.ones(_NUM_ENVS, np.int32), np.ones(_NUM_ENVS, np.float32)
        observation = np.random.default_rng(0).random((_NUM_ENVS, 4)).astype(np.float32)
        adder.add_first(dm_env.TimeStep(0 * kinds, 0 * ones, ones, observation))
        began = time.perf_counter()
        for _ in range(_ITEMS // _NUM_ENVS):
            role.pause(0.0)
            adder.add(kinds, dm_env.TimeStep(kinds, ones, ones, observation))
        replay.flush()
        self.note("writer", {"seconds": time.perf_counter() - began})
        self.rest()
        replay.close()


class _Drawer(_Noted):
    """Draws batches as fast as they come, as the learner does."""

    def __init__(self, answers: str, service: Any, steps_per_sample: int, seconds: float):
        super().__init__(answers)
        self._service, self._k, self._seconds = service, steps_per_sample, seconds

    def run(self) -> None:
        self.wait_for("writer")
        options = {"num_envs": _NUM_ENVS, "seed": 0, "steps_per_sample": self._k}
        replay = self._service.reader()(_SPEC, _ENVIRONMENT, (), **options)
        batches = replay.dataset(self._k)
        for _ in range(10):
            next(batches)
        count, began = 0, time.perf_counter()
        while time.perf_counter() < began + self._seconds:
            next(batches)
            role.pause(0.0)
            count += self._k
        self.note("drawer", {"rate": count / (time.perf_counter() - began)})
        self.rest()
        replay.close()


def variables_cost(
    kind: str, agent: str, num_bytes: int = 100_000_000, readers: int = 8
) -> dict[str, float]:
    """Measures the seconds of a version to its readers, and of a call that finds nothing newer."""
    worker = functools.partial(
        _plan,
        "learner",
        _Sender,
        board=_BOARD,
        variables=Reference("variables"),
        num_bytes=num_bytes,
        readers=readers,
    )
    with _running(kind, agent, [_variables, worker, *_readers(readers)]) as answer:
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
    kind: str, agent: str, readers: int = 16, rounds: int = 15, seconds: float = 1.0
) -> dict[str, float]:
    """Steps a second of a learner that offers each of them, alone and with readers.

    Args:
      kind: of launch.
      agent: name of the agent.
      readers: how many.
      rounds: of so many seconds alone and as many with readers, in turn: the machine's other work
        then meets both.
      seconds: of one measurement.

    Returns:
      `alone` and `with_readers`, medians, and `ratio`, the median of the rounds' ratios.
    """
    worker = functools.partial(
        _plan, "learner", _Steps, board=_BOARD, readers=readers, rounds=rounds, seconds=seconds
    )
    with _running(kind, agent, [_variables, worker, *_readers(readers)]) as answer:
        rates = answer("steps")
    ratios = [b / a for a, b in zip(rates["alone"], rates["with_readers"], strict=True)]
    return {
        "alone": statistics.median(rates["alone"]),
        "with_readers": statistics.median(rates["with_readers"]),
        "ratio": statistics.median(ratios),
    }


def batches(
    kind: str, agent: str, steps_per_sample: int = 1, seconds: float = 4.0
) -> dict[str, float]:
    """Batches of 64 prioritised transitions of four floats that a learner is given in a second.

    Args:
      kind: of launch.
      agent: name of the agent.
      steps_per_sample: K, batches drawn at once.
      seconds: of drawing.
    """
    service = Reference("replay", "replay")
    plans = [
        functools.partial(
            _plan, "replay", _Table, service=service, steps_per_sample=steps_per_sample
        ),
        functools.partial(
            _plan,
            "learner",
            _Drawer,
            service=service,
            steps_per_sample=steps_per_sample,
            seconds=seconds,
        ),
        functools.partial(_plan, "actor", _Writer, service=service),
    ]
    with _running(kind, agent, plans) as answer:
        written, rate = answer("writer")["seconds"], answer("drawer")["rate"]
    return {"batches_per_second": rate, "items_written_per_second": _ITEMS / written}


def _plan(label: str, constructor: Callable[..., Any], answers: str, **arguments: Any) -> RolePlan:
    return RolePlan(
        label,
        constructor,
        {"answers": answers, **arguments},
        Settings(restart=False, reverb=label in ("replay", "actor", "learner")),
        serves_replay=label == "replay",
    )


def _variables(answers: str) -> RolePlan:
    return RolePlan("variables", VariableRole, {}, Settings(restart=False), threads=32)


def _readers(count: int) -> list[Callable[[str], RolePlan]]:
    return [
        functools.partial(_plan, "actor", _Reader, board=_BOARD, index=index)
        for index in range(count)
    ]


@contextlib.contextmanager
def _running(
    kind: str, agent: str, plans: Sequence[Callable[[str], RolePlan]]
) -> Iterator[Callable[..., dict[str, Any]]]:
    """Roles of a launch, while it lasts; yields what reads their answers."""
    folder = shared_folder("speed")
    places = {name: folder / name for name in ("answers", "workspace", "logs", "run")}
    for place in places.values():
        place.mkdir()
    made = [plan(str(places["answers"])) for plan in plans]
    deployment = Deployment(
        experiment(agent, _NUM_ENVS, steps=1000, launch=kind),
        places["run"],
        Roles(actors=sum(plan.label == "actor" for plan in made)),
        tuple(made),
        _SPEC,
    )

    def answer(name: str, seconds: float = 240.0) -> dict[str, Any]:
        """Returns the values that a role wrote down."""
        deadline, path = time.monotonic() + seconds, places["answers"] / name
        while not path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {name} within {seconds:g} s.")
            poll()
            time.sleep(0.05)
        return json.loads(path.read_text())

    try:
        with _started(deployment, kind, places["workspace"], places["logs"]) as poll:
            yield answer
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _started(
    deployment: Deployment, kind: str, workspace: pathlib.Path, logs: pathlib.Path
) -> Iterator[Callable[[], None]]:
    """Yields what looks after the roles."""
    if kind == "ray":
        from ...launch.distributed.engines.ray import cluster, launcher, ray_engine

        bundles = functools.partial(launcher.bundles, deployment)
        with (
            cluster.connected(None, bundles, None, deployment.directory) as connected,
            ray_engine.RayEngine(deployment, connected).start(
                workspace, logs, print
            ) as incarnations,
        ):
            yield incarnations.poll
        return
    from ...launch.distributed.engines.launchpad import launcher as processes
    from ...launch.distributed.engines.launchpad.program import LaunchProgram

    supervisor = processes.start(LaunchProgram(deployment), kind, workspace, logs, print)
    try:
        yield supervisor.poll
    finally:
        supervisor.stop()
