"""Runs what searches find on a machine, beside the listed schedules.

    python -m troupe.baselines.speed.laboratory.executed --json

Calibrates this machine and, for every case below, searches for a schedule with what was measured.
The winner's program is verified, run, and held against the unpartitioned step; then it and every
listed schedule run in turns, so that all see the same weather. On a CPU give it eight virtual
devices: `XLA_FLAGS=--xla_force_host_platform_device_count=8 NPROC=32`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding

from ....partitioning import Automatic, Budget, Simulator, models, parse_mesh, parse_schedule
from ....partitioning.ir.verify import verify
from ....partitioning.partition import Partitioned, partition
from ....partitioning.simulator.calibration import Calibration, calibrate
from ..partitioner import shown
from .cases import make, schedules
from .ranking import MODELS

#: What of an array's norm may be rounding; that of the tests of semantics.
TOLERANCE = 1e-5
#: Of one float32 operation.
ROUNDING = float(np.finfo(np.float32).eps)
#: A winner that takes so much more than the best listed schedule is as good as it.
ALIKE = 1.05
#: What the winner is called among the schedules.
FOUND = "found"


@dataclasses.dataclass(frozen=True)
class Case:
    """One step on one mesh, small enough for two cores that play eight devices."""

    model: str
    mesh: str
    sizes: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.model} {self.mesh}"


_MLP = {"batch": 64, "num_layers": 4, "width": 512, "hidden": 2048}
_TRANSFORMER = MODELS["transformer"]
_LARGE_BATCH = {"batch_size": 1024, "features": 64, "hidden_sizes": (256, 256)}
_ROLLOUTS = {"num_envs": 64, "rollout_length": 16, "features": 64, "hidden_sizes": (256, 256)}
CASES = (
    Case("mlp", "data=8", _MLP),
    Case("mlp", "data=4,model=2", _MLP),
    Case("mlp", "data=2,model=4", {**_MLP, "batch": 512, "width": 256, "hidden": 1024}),
    Case("transformer", "data=8", _TRANSFORMER),
    Case("transformer", "data=4,model=2", _TRANSFORMER),
    Case("transformer", "data=4,model=2", {**_TRANSFORMER, "batch": 4, "width": 256}),
    Case("residual_net", "data=8", {"batch": 32, "size": 16, "width": 32, "classes": 16}),
    Case("graph_net", "data=4,model=2", {"graphs": 64, "features": 64, "hidden": 256}),
    Case("lstm", "data=4,model=2", {"batch": 64, "length": 16, "features": 128, "hidden": 256}),
    Case(
        "experts",
        "data=4,model=2",
        {"batch": 16, "length": 32, "width": 128, "hidden": 512, "experts": 8},
    ),
    Case("dqn", "data=8", _LARGE_BATCH),
    Case("c51", "data=4,model=2", _LARGE_BATCH),
    Case("d4pg", "data=8", _LARGE_BATCH),
    Case("sac", "data=4,model=2", _LARGE_BATCH),
    Case("td3", "data=2,model=4", {**_LARGE_BATCH, "hidden_sizes": (1024, 1024), "batch_size": 64}),
    Case("mpo", "data=8", {**_LARGE_BATCH, "batch_size": 256}),
    Case("ppo", "data=8", _ROLLOUTS),
    Case("ppo", "data=4,model=2", _ROLLOUTS),
    Case("impala", "data=8", _ROLLOUTS),
    Case("r2d2", "data=4,model=2", {"batch_size": 64, "hidden_sizes": (128,), "core_size": 128}),
    Case("film", "data=4,model=2", {"batch": 32, "width": 16, "hidden": 128}),
    Case("mixer", "data=8", {"batch": 32, "width": 128, "hidden": 512, "length": 64}),
    Case("selective", "data=4,model=2", {"width": 64, "hidden": 128, "length": 32, "classes": 256}),
    Case("towers", "data=8", {"batch": 256, "width": 128, "hidden": 512, "classes": 4096}),
)


@dataclasses.dataclass(frozen=True)
class Ran:
    """One schedule of a case.

    Attributes:
      schedule: the text; `FOUND` for what was searched, "" for no split at all.
      predicted: seconds of a step, by the calibration.
      measured: the median of seconds.
      processor: the median of seconds of a processor, all devices together.
    """

    schedule: str
    predicted: float
    measured: float
    processor: float


class Error(NamedTuple):
    """The largest distance from what is wanted, as a part of its norm."""

    of_arrays: float
    of_scalars: float

    def is_rounding(self, terms: int) -> bool:
        """True if the error is within the rounding of float32.

        Args:
          terms: of the longest sum. XLA adds them one after another on a CPU, with errors that walk
            at random: a gradient's norm over two million weights is 1e-4 off, unpartitioned too.
        """
        return self.of_arrays <= TOLERANCE and self.of_scalars <= max(
            TOLERANCE, ROUNDING * terms**0.5
        )


def worst_error(got: Any, wanted: Any) -> Error:
    """Returns the distance of floats from the expected ones, of arrays and of scalars apart.

    Raises:
      ValueError: where integers or shapes differ, or something is not a number.
    """
    worst = [0.0, 0.0]
    have, want = jax.tree.leaves(got), jax.tree.leaves(wanted)
    for a, b in zip(map(_plain, have), map(_plain, want), strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise ValueError(f"{a.dtype}{a.shape} where {b.dtype}{b.shape} is wanted")
        if not np.issubdtype(b.dtype, np.floating):
            if not np.array_equal(a, b):
                raise ValueError(f"{(a != b).sum()} of {b.size} integers differ")
            continue
        distance = float(np.linalg.norm(a - b))
        if distance:
            part = distance / (float(np.linalg.norm(b)) or distance)
            worst[not b.ndim] = max(worst[not b.ndim], part)
        if not np.isfinite(distance):
            raise ValueError("there are numbers that are none")
    return Error(*worst)


def _plain(leaf: Any) -> np.ndarray:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(jax.device_get(leaf))


def listed(
    example: models.Example, mesh: str, simulator: Simulator
) -> list[tuple[str, Partitioned]]:
    """No split, and every listed schedule that the mesh allows."""
    found = []
    shape = parse_mesh(mesh)
    for schedule in schedules(example, shape.axes):
        step = partition(example.update, shape, parse_schedule(schedule), simulate=simulator)
        try:
            step.plan(example.state_shapes, example.batch_shapes)
        except ValueError:
            continue  # A dimension that does not divide by this mesh.
        found.append((schedule, step))
    return found


def execute(case: Case, simulator: Simulator, estimates: int, seconds: float) -> dict[str, Any]:
    """One case: searched, verified, compared, and run beside what is listed.

    Args:
      case: the step and its mesh.
      simulator: of this machine.
      estimates: of the search.
      seconds: how long the schedules run in turns, shuffled; each at least five times.
    """
    example = make(case.model, **case.sizes)
    mesh = parse_mesh(case.mesh)
    automatic = Automatic(tuple(mesh.axes), budget=Budget(estimates=estimates))
    step = partition(example.update, mesh, [automatic], simulate=simulator)
    state, batch = models.mid_training(example)
    plan = step.plan(state, batch)
    verify(plan.program, plan.mesh.axes, types=True)
    wanted = jax.jit(example.update)(state, batch)
    ways = [(FOUND, step), *listed(example, case.mesh, simulator)]
    error = worst_error(step(state, batch), wanted)
    timed = []
    for schedule, one in ways:
        its = one.plan(state, batch)
        place = functools.partial(NamedSharding, mesh.jax_mesh())
        arguments = jax.device_put((state, batch), jax.tree.map(place, its.input_shardings))
        jax.block_until_ready(one(*arguments))
        predicted = its.steps[-1].simulation.predicted_seconds.total
        timed.append((schedule, predicted, one, arguments))
    before = os.getloadavg()[0]
    took: list[list[tuple[float, float]]] = [[] for _ in timed]
    until = time.perf_counter() + seconds
    # Shuffled: what ran before leaves its arrays in the caches, and should not always be the same.
    rng = np.random.default_rng(0)
    while len(took[0]) < 5 or time.perf_counter() < until:
        for i in rng.permutation(len(timed)):
            _, _, one, arguments = timed[i]
            started, spent = time.perf_counter(), time.process_time()
            jax.block_until_ready(one(*arguments))
            took[i].append((time.perf_counter() - started, time.process_time() - spent))
    rows = [
        Ran(schedule, predicted, *(statistics.median(t) for t in zip(*times, strict=True)))
        for times, (schedule, predicted, _, _) in zip(took, timed, strict=True)
    ]
    ours, *others = rows
    best = min(others, key=lambda row: row.measured)
    thought = min(others, key=lambda row: row.predicted)
    return {
        "case": case.name,
        "sizes": case.sizes,
        "error": error.of_arrays,
        "error_of_scalars": error.of_scalars,
        "equal": error.is_rounding(max(x.size for x in jax.tree.leaves(example.state_shapes))),
        "ratio": round(ours.measured / best.measured, 4),
        "ratio_of_processor": round(ours.processor / min(r.processor for r in others), 4),
        "ratio_predicted": round(ours.predicted / thought.predicted, 4),
        "best_listed": best.schedule or "whole",
        "rounds": len(took[0]),
        "load": [round(before, 1), round(os.getloadavg()[0], 1)],
        "moves": list(plan.steps[-1].log.judged[0].moves),
        "rows": [dataclasses.asdict(row) for row in rows],
    }


def in_all(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns a summary over all cases."""
    ratios = [row["ratio"] for row in found]
    return {
        "cases": len(found),
        "equal": sum(row["equal"] for row in found),
        "alike_or_better": round(statistics.mean(r <= ALIKE for r in ratios), 4),
        "median": statistics.median(ratios),
        "worst": max(ratios),
        "most_times_faster": round(1 / min(ratios), 3),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m troupe.baselines.speed.laboratory.executed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--models", default="", help="names: of the cases, those of these models")
    parser.add_argument("--estimates", type=int, default=300, help="of each search (default 300)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each case's turns")
    parser.add_argument("--calibration", help="a file of `pt.calibrate().save`; by default, now")
    options = parser.parse_args(argv)
    wanted = [name for name in options.models.split(",") if name]
    if options.calibration:
        calibration = Calibration.load(options.calibration)
    else:
        calibration = calibrate(jax.devices()[:8])
    simulator = Simulator(calibration.device, calibration.topology)
    found = []
    for case in CASES:
        if not wanted or case.model in wanted:
            found.append(execute(case, simulator, options.estimates, options.seconds))
            shown({k: v for k, v in found[-1].items() if k != "rows"})
            for row in found[-1]["rows"]:
                print(
                    f"    {row['schedule'] or 'whole':40} predicted {row['predicted'] * 1e3:8.2f} "
                    f"measured {row['measured'] * 1e3:8.2f} ms, {row['processor'] * 1e3:8.2f} of "
                    "a processor",
                    file=sys.stderr,
                    flush=True,
                )
    summary = in_all(found)
    print(summary, file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps({"in_all": summary, "cases": found}, indent=1))


if __name__ == "__main__":
    main()
