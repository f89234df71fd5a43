"""A whole run of a launch, watched from inside: its speed, its start, and the memory of it all."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...launch import Checkpointing, Evaluation
from ...launch.logging.metrics import read
from ...launch.roles import LAUNCHPAD, RAY
from ...launch.running import runner
from ...launch.specification.recipe import Recipe

_QUIET = {"samples_per_insert": 1.0, "min_replay_size": 200, "steps_per_dispatch": 1}
_PERIOD = 0.1


def experiment(agent: str, num_envs: int, **changes: Any) -> Any:
    """One of an agent in an environment that does nothing, and no evaluations or checkpoints."""
    return Recipe(
        agent,
        "fake/discrete",
        config={"num_envs": num_envs, **_QUIET},
        evaluation=Evaluation(every=10**9, episodes=1, final_episodes=1, num_envs=1),
        checkpointing=Checkpointing(every_seconds=1e6, replay="never"),
        **changes,
    ).experiment()


def acting(kind: str, agent: str, step_ms: float, actors: int, seconds: float) -> dict[str, float]:
    """A run whose environments sleep at each step.

    Args:
      kind: of launch.
      agent: name of the agent.
      step_ms: what a step sleeps.
      actors: how many actors, of one environment each.
      seconds: about how long they are watched, when all of them act.

    Returns:
      `steps_per_second`, over the last third of the run, as on few cores actors begin many seconds
      one after another; `first_step_seconds`, from the start of
      this process to the first steps that the run counts, and `first_step_cpu_seconds` of all
      processes by then; megabytes of memory in the middle of the run, where what processes share
      is shared out: `actor_megabytes` of an actor (`actor_resident_megabytes` with all that it
      shares), `roles_megabytes` of all roles, `engine_megabytes` of what else was started, this
      process too, in `engine_processes`.
    """
    out = pathlib.Path(tempfile.mkdtemp(prefix="speed-"))
    steps = int(actors * 3 * seconds * 1000 / (step_ms + 0.3))
    try:
        made = experiment(
            agent,
            1,
            steps=steps,
            environment={"step_ms": step_ms, "episode_lengths": (200,)},
            launch=kind,
        )
        with _watched(out / "run", steps) as seen:
            engine = RAY if kind == "ray" else LAUNCHPAD
            runner(kind, {"actors": actors}, engine)(made, out / "run", progress=False)
        rows = [row for row in read(out / "run" / "metrics.jsonl", "train") if row["actor_steps"]]
        later = [row for row in rows if 2 / 3 * steps <= row["actor_steps"] < steps]
        first, last = later[0], later[-1]
        taken = last["actor_steps"] - first["actor_steps"]
        return {"steps_per_second": taken / (last["wall_seconds"] - first["wall_seconds"]), **seen}
    finally:
        shutil.rmtree(out, ignore_errors=True)


class Process(NamedTuple):
    """Memory of one of a run's processes."""

    name: str | None
    """Of its role; None: it is none's."""
    resident: float
    """Megabytes that it sees."""
    share: float
    """Megabytes, where those that several see are shared out."""
    cpu: float
    """Seconds, with those of its children that ended."""


def processes(logs: pathlib.Path) -> list[Process]:
    """This process and all that descend from it. Roles are known by the log that they write to."""
    children: dict[int, list[int]] = {}
    fields: dict[int, list[str]] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, rest = int(path.parts[2]), path.read_text().rpartition(")")[2].split()
            children.setdefault(int(rest[1]), []).append(pid)
            fields[pid] = rest
    found, waiting = [], [os.getpid()]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        with contextlib.suppress(OSError, KeyError):
            cpu = sum(map(int, fields[pid][11:15])) / os.sysconf("SC_CLK_TCK")
            rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            sizes = {line.split()[0]: float(line.split()[1]) / 1e3 for line in rollup[1:]}
            log = pathlib.Path(os.readlink(f"/proc/{pid}/fd/1"))
            name = log.stem if log.parent == logs.absolute() else None
            found.append(Process(name, sizes["Rss:"], sizes["Pss:"], cpu))
    return found


@contextlib.contextmanager
def _watched(out: pathlib.Path, steps: int) -> Iterator[dict[str, float]]:
    """Fills what it yields in while a run writes to a directory."""
    seen: dict[str, float] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_PERIOD):
            with contextlib.suppress(OSError, ValueError):
                rows = [r for r in read(out / "metrics.jsonl", "train") if r["actor_steps"]]
                if rows and not seen:
                    seen["first_step_seconds"] = _age() - rows[0]["train_seconds"]
                    seen["first_step_cpu_seconds"] = sum(p.cpu for p in processes(out / "logs"))
                if rows and rows[-1]["actor_steps"] >= 0.6 * steps:
                    seen.update(_memory(processes(out / "logs")))
                    return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def _memory(found: list[Process]) -> dict[str, float]:
    actors = [one for one in found if one.name is not None and one.name.startswith("actor")]
    roles = [one for one in found if one.name is not None]
    engine = [one for one in found if one.name is None]
    return {
        "actor_megabytes": statistics.median(one.share for one in actors),
        "actor_resident_megabytes": statistics.median(one.resident for one in actors),
        "roles_megabytes": sum(one.share for one in roles),
        "engine_megabytes": sum(one.share for one in engine),
        "engine_processes": len(engine),
    }


def _age() -> float:
    """Seconds since this process began."""
    began = int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began / os.sysconf("SC_CLK_TCK")
