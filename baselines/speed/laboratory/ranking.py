"""Compares the order of schedules in the simulator with their order on a machine.

    python -m troupe.baselines.speed.laboratory.ranking

Calibrates this machine, predicts the step time of every schedule below for three models, runs them
all in turns, and prints both, with Spearman's rank correlation. On a CPU give it eight virtual
devices: `XLA_FLAGS=--xla_force_host_platform_device_count=8 NPROC=32`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

#: (mesh, schedule) tried for each model.
SCHEDULES = (
    ("data=8", "batch:data"),
    ("data=8", "batch:data,zero2:data"),
    ("data=8", "batch:data,zero3:data"),
    ("data=4,model=2", "batch:data,megatron:model"),
    ("data=4,model=2", "batch:data,megatron:model,zero3:data"),
    ("data=2,model=4", "batch:data,megatron:model"),
    ("data=2,model=4", "batch:data"),
    ("data=4,model=2", "batch:data"),
    ("model=8,data=1", "megatron:model"),
    ("model=4,data=2", "megatron:model"),
    ("data=8", "zero3:data"),
    ("data=4,model=2", "batch:data,zero3:data"),
)
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {
        "batch": 32,
        "length": 64,
        "vocabulary": 256,
        "width": 128,
        "num_heads": 8,
        "num_layers": 2,
        "optimizer": "adam",
    },
    "mlp": {"batch": 512, "num_layers": 3, "width": 256, "hidden": 1024, "optimizer": "adam"},
    "residual_net": {"batch": 32, "size": 16, "width": 32, "classes": 16, "groups": 8},
}


@dataclasses.dataclass(frozen=True)
class ScheduleTimes:
    """One schedule of one model."""

    model: str
    mesh: str
    schedule: str
    predicted: float
    measured: float


def rank(values: Sequence[float]) -> np.ndarray:
    """Ranks from zero, ties sharing the mean of theirs."""
    array = np.asarray(values, float)
    return np.array([(array < v).sum() + ((array == v).sum() - 1) / 2 for v in array])


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rank correlation."""
    return float(np.corrcoef(rank(a), rank(b))[0, 1])


def measure(
    model: str, sizes: dict[str, Any], device: Any, topology: Any, rounds: int
) -> list[ScheduleTimes]:
    """Predicts and measures every schedule; rounds go over all schedules, so that all see the same
    weather."""
    import jax
    from jax.sharding import NamedSharding

    from ....partitioning import models
    from ....partitioning.mesh import Mesh, parse_mesh
    from ....partitioning.partition import partition
    from ....partitioning.simulator.attach import Simulator
    from ....partitioning.tactics import parse_schedule

    example = models.make(model, **sizes)
    simulator = Simulator(device, topology)
    state, batch = example.init(jax.random.PRNGKey(0)), example.make_batch(jax.random.PRNGKey(1))
    cases = []
    for mesh_text, schedule in SCHEDULES:
        axes = parse_mesh(mesh_text).axes
        mesh = Mesh(axes, jax.devices()[: int(np.prod(list(axes.values())))])
        step = partition(example.update, mesh, parse_schedule(schedule), simulate=simulator)
        plan = step.plan(state, batch)
        predicted = plan.steps[-1].simulation.predicted_seconds.total
        place = functools.partial(NamedSharding, mesh.jax_mesh())
        shardings = jax.tree.map(place, plan.input_shardings)
        arguments = jax.block_until_ready(jax.device_put((state, batch), shardings))
        jax.block_until_ready(step(*arguments))
        cases.append((mesh_text, schedule, step, arguments, predicted))
    best = [float("inf")] * len(cases)
    for _ in range(rounds):
        for i, (_, _, step, arguments, _) in enumerate(cases):
            started = time.perf_counter()
            jax.block_until_ready(step(*arguments))
            best[i] = min(best[i], time.perf_counter() - started)
    return [
        ScheduleTimes(model, m, s, p, t) for (m, s, _, _, p), t in zip(cases, best, strict=True)
    ]


def summary(rows: Sequence[ScheduleTimes]) -> dict[str, Any]:
    """Rank correlation, median error, and where the predicted best stands among the measured."""
    predicted, measured = [r.predicted for r in rows], [r.measured for r in rows]
    best = int(np.argmin(predicted))
    return {
        "model": rows[0].model,
        "spearman": spearman(predicted, measured),
        "median_error": statistics.median(
            abs(p / m - 1) for p, m in zip(predicted, measured, strict=True)
        ),
        "place_of_predicted_best": int(rank(measured)[best]) + 1,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Calibrates, measures, prints."""
    import jax

    from ....partitioning.simulator.calibration import calibrate

    parser = argparse.ArgumentParser(
        prog="troupe.baselines.speed.laboratory.ranking", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=20, help="timed runs of each schedule")
    parser.add_argument("--models", default=",".join(MODELS), help="which models")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    calibration = calibrate(jax.devices()[:8])
    found: list[dict[str, Any]] = []
    for model in args.models.split(","):
        rows = measure(model, MODELS[model], calibration.device, calibration.topology, args.rounds)
        found.append({**summary(rows), "rows": [dataclasses.asdict(r) for r in rows]})
        if not args.json:
            for row in sorted(rows, key=lambda r: r.measured):
                print(
                    f"{row.model:14} {row.mesh:16} {row.schedule:40} "
                    f"measured {row.measured * 1e3:8.2f} ms  "
                    f"predicted {row.predicted * 1e3:8.2f} ms"
                )
            print({k: v for k, v in found[-1].items() if k != "rows"}, flush=True)
    if args.json:
        print(json.dumps({"calibration": calibration.to_json(), "models": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
