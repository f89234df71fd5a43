"""The rates of compiled runs beside the same builder through Gymnasium, and PureJaxRL's PPO.

All run in turn, round after round, so that a machine that becomes slower does so for all of them.
Ours are whole runs with metrics and checkpoints, PureJaxRL's is one call. Compilation is left out.
"""

from __future__ import annotations

import pathlib
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .... import launch
from ....launch import Callback, StopRun
from .. import peers
from . import cases, purejaxrl

CHECKPOINT_SECONDS = 4.0
_PEER_STEPS = 1_000_000
"""Of the one call of PureJaxRL."""
WAYS = {
    "compiled": ("compiled", "jax:CartPole-v1", {}),
    "Gymnasium": ("one-process", "CartPole-v1", {}),
    "Gymnasium, one by one": ("one-process", "CartPole-v1", {"one_by_one": True}),
}
"""Launch, task and options of `cases.experiment`. Of eight environments and more Gymnasium steps
CartPole as one with numpy, as other tasks are not."""
_RATES = ("env_steps_per_second", "env_steps_per_cpu_second")


class Moment(NamedTuple):
    """The counts and clocks of a run at a row of its metrics."""

    actor_steps: int
    learner_steps: int
    wall: float
    cpu: float


class Watch(Callback):
    """Times a run from its first row after a checkpoint and a gradient step, and ends it.

    By then all is compiled, the copies that checkpoints are made of too.

    Attributes:
      begun: where the time begins; None: not yet.
      newest: of the newest row.
      checkpoints: written since.
    """

    fatal = True

    def __init__(self, seconds: float):
        """Takes the seconds after which the run ends."""
        self._seconds, self._saved = seconds, False
        self.begun: Moment | None = None
        self.newest: Moment | None = None
        self.checkpoints = 0

    def on_checkpoint(self, path: pathlib.Path, counts: Mapping[str, Any]) -> None:
        self._saved = True
        self.checkpoints += self.begun is not None

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        if not self._saved or not row["learner_steps"]:
            return
        clocks = time.perf_counter(), time.process_time()
        self.newest = Moment(row["actor_steps"], row["learner_steps"], *clocks)
        self.begun = self.begun or self.newest
        if self.newest.wall - self.begun.wall >= self._seconds:
            raise StopRun("measured for long enough")


def measure(
    kind: str, case: cases.CompiledCase, seconds: float, env: str, **options: Any
) -> dict[str, Any]:
    """Returns the rates of a run of ours.

    Args:
      kind: of launch.
      case: what learns.
      seconds: of the measurement.
      env: id of the task.
      **options: of `cases.experiment`.

    Raises:
      ValueError: if the budget was spent before anything could be measured.
    """
    watch = Watch(seconds)
    options = {"checkpoint_seconds": CHECKPOINT_SECONDS, **options}
    made = cases.experiment(case, env, [watch], **options)
    with tempfile.TemporaryDirectory(prefix="speed-") as folder:
        launch.run(made, pathlib.Path(folder) / "run", kind=kind, progress=False)
    begun, newest = watch.begun, watch.newest
    if begun is None or newest is None or newest.wall == begun.wall:
        raise ValueError(f"the {kind} run of {case.agent} ended before it could be measured.")
    wall, cpu = newest.wall - begun.wall, newest.cpu - begun.cpu
    taken, learned = (newest[i] - begun[i] for i in range(2))
    return {
        "env_steps_per_second": taken / wall,
        "env_steps_per_cpu_second": taken / cpu,
        "gradient_steps_per_second": learned / wall,
        "env_steps": taken,
        "seconds": wall,
        "checkpoints": watch.checkpoints,
    }


def measure_purejaxrl(
    python: str, source: str, case: cases.CompiledCase, steps: int
) -> dict[str, Any]:
    """Returns the rates of PureJaxRL's PPO with the sizes of a case of ours.

    Raises:
      ValueError: of `peers.run_file`.
    """
    sizes = {name: case.config[name] for name in ("num_envs", "rollout_length")}
    source = str(pathlib.Path(source).absolute())
    asked = {"source": source, "steps": steps, **sizes}
    return peers.run_file(python, purejaxrl.__file__, asked, "purejaxrl")


def compare(
    name: str, rounds: int, seconds: float, peer: tuple[str, str] | None = None
) -> dict[str, Any]:
    """Runs a case of `cases.CASES` in all ways, in turn.

    Args:
      name: of the case.
      rounds: how often.
      seconds: of every measurement of ours.
      peer: interpreter and checkout of PureJaxRL, for PPO; None: it is left out.

    Returns:
      `runs` of each, `medians` of their rates, and `ratios`: the compiled run's rate over that of
      each other, a list of one for every round.
    """
    case = cases.CASES[name]
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for way, (kind, env, options) in WAYS.items():
            runs.setdefault(way, []).append(measure(kind, case, seconds, env, **options))
        if peer is not None and case.agent == "ppo":
            found = measure_purejaxrl(peer[0], peer[1], case, _PEER_STEPS)
            runs.setdefault("purejaxrl", []).append(found)
    others = {who: found for who, found in runs.items() if who != "compiled"}
    medians = {
        who: {rate: statistics.median(run[rate] for run in found) for rate in _RATES}
        for who, found in runs.items()
    }
    ratios = {
        who: {
            rate: [a[rate] / b[rate] for a, b in zip(runs["compiled"], found, strict=True)]
            for rate in _RATES
        }
        for who, found in others.items()
    }
    return {"case": name, "medians": medians, "ratios": ratios, "runs": runs}


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Returns the figures as lines; ratios are the least and the greatest of all rounds."""
    heads = f"{'env steps':32} {'a second':>10} {'ratio':>13} {'a CPU second':>13} {'ratio':>13}"
    lines = [heads]
    for one in found:
        for who, rates in one["medians"].items():
            cells = []
            for rate, width in zip(_RATES, (10, 13), strict=True):
                ratios = one["ratios"].get(who, {}).get(rate)
                text = f"{min(ratios):.2f}-{max(ratios):.2f}" if ratios else ""
                cells.append(f"{rates[rate]:{width},.0f} {text:>13}")
            lines.append(f"{one['case'] + ' ' + who:32} {' '.join(cells)}".rstrip())
    return "\n".join(lines)
