"""PPO as one program, by the number of environments and of seeds.

A cell of the grid is a loop by itself, without a run around it; `run` cells are whole runs with
metrics and checkpoints. Each is compiled, then measured for a few seconds. Every cell writes its
line of JSON before the next begins; one that does not fit memory says so, and one for which no time
is left is not begun, so that the whole always ends.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from . import cases

TASKS = ("jax:CartPole-v1", "jax:pgx/minatar-breakout")
ENVS = (1_024, 4_096, 16_384, 65_536)
SEEDS = (1, 16, 256)
RUNS = (4_096, 16_384)
"""Environments of whole runs."""
MOST_STREAMS = 1 << 20
"""Environments of all seeds, beyond which a cell is left out."""
_SECONDS = 2.0
"""Of a measurement, compilation apart."""
_LEAST_LEFT = 25.0
"""Seconds that the first cell may take, of which nothing is known."""


class Cell(NamedTuple):
    """One measurement, of a "loop" or of a "run"."""

    what: str
    env: str
    num_envs: int
    seeds: int


def cells(tasks: tuple[str, ...], envs: tuple[int, ...], seeds: tuple[int, ...]) -> list[Cell]:
    """Returns the cells of a grid: runs, one seed of everything, then more, small ones first."""
    found = [Cell("run", task, n, 1) for task in tasks for n in envs if n in RUNS]
    found += [Cell("loop", task, n, 1) for n in envs for task in tasks]
    more = [
        Cell("loop", task, n, s)
        for n, s, task in itertools.product(envs, seeds, tasks)
        if s > 1 and n * s <= MOST_STREAMS
    ]
    return found + sorted(more, key=lambda cell: cell.num_envs * cell.seeds)


def main(options: argparse.Namespace) -> int:
    """Measures the cells until the seconds are over; status 1 if none could be."""
    chosen = cells(
        tuple(options.tasks or TASKS), tuple(options.envs or ENVS), tuple(options.seeds or SEEDS)
    )
    done = 0
    with pathlib.Path(options.grid).open("a") as file:
        for row in measured(chosen, options.seconds or 420.0, options.rollout):
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(json.dumps(row), flush=True)
            done += "env_steps_per_second" in row
    return 0 if done else 1


def measured(chosen: list[Cell], seconds: float, rollout_length: int) -> Iterator[dict[str, Any]]:
    """Yields a row for each cell.

    Args:
      chosen: the cells.
      seconds: after which no cell is begun that is likely to go beyond.
      rollout_length: of PPO.
    """
    began, longest = time.perf_counter(), _LEAST_LEFT
    device = jax.devices()[0]
    common = {"device": device.device_kind, "rollout_length": rollout_length}
    for cell in chosen:
        row: dict[str, Any] = {**cell._asdict(), **common}
        started = time.perf_counter()
        if started - began + longest > seconds:
            yield {**row, "left_out": "no time left"}
            continue
        case = cases.ppo(cell.num_envs, rollout_length)
        try:
            found = _MEASURES[cell.what](cell, case)
        except Exception as error:  # Of all that may fail on a device the other cells are free.
            found = {"failed": f"{type(error).__name__}: {str(error).strip()[:300]}"}
        taken = time.perf_counter() - started
        longest = max(taken, longest if longest != _LEAST_LEFT else 0.0)
        yield {**row, **found, "cell_seconds": round(taken, 2), **_memory(device)}
        jax.clear_caches()  # Programs hold constants on the device.
        gc.collect()


def _loop(cell: Cell, case: cases.CompiledCase) -> dict[str, Any]:
    """Times the loop of a cell by itself, whole rollouts with what is learned from them."""
    made = cases.alone(case, cell.env, num_runs=cell.seeds if cell.seeds > 1 else None)
    state, turns = made.state, case.config["rollout_length"]

    def go_on(count: int) -> tuple[int, float]:
        nonlocal state
        before, start = _steps(state), time.perf_counter()
        state = made.advance(state, count)
        return _steps(state) - before, time.perf_counter() - start

    start = time.perf_counter()
    go_on(turns)
    compiled = time.perf_counter() - start
    _, each = go_on(turns)
    count = max(1, round(_SECONDS / 4 / each)) * turns
    taken, spent = (sum(values) for values in zip(*(go_on(count) for _ in range(4)), strict=True))
    return {
        "env_steps_per_second": taken / spent,
        "seconds_of_a_turn": spent / (4 * count),
        "compile_seconds": round(compiled, 2),
    }


def _steps(state: Any) -> int:
    """Returns the actor steps of all runs; waits for them."""
    return int(np.asarray(state.acting.actor_steps, np.int64).sum())


def _run(cell: Cell, case: cases.CompiledCase) -> dict[str, Any]:
    """Times a whole run, with metrics and checkpoints."""
    from . import rates

    return rates.measure("compiled", case, 2 * _SECONDS, cell.env)


_MEASURES: dict[str, Callable[[Cell, cases.CompiledCase], dict[str, Any]]] = {
    "loop": _loop,
    "run": _run,
}


def _memory(device: jax.Device) -> dict[str, int]:
    """Returns the most bytes that the device has held until now, where it says so."""
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
    return {} if peak is None else {"peak_bytes": peak}
