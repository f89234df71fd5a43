"""Holds what is predicted of pipelines against a machine.

    python -m troupe.baselines.speed.laboratory.pipelines --json

Five parts:

- ranking: calibrates this machine, predicts the step time of every table below, runs them all in
  turns, and prints both, with Spearman's rank correlation. Times are the least of all rounds, so
  that other work on the machine tells least.
- memory: what the compiler says that a device of each model below needs, and what was predicted.
- co-shard: what the compiler says that a transformer with long attention needs, and its time, with
  attention in parts beside the whole.
- links: step times of a learner over two hosts with a slow link, with stages and without; see
  :mod:`.links`, which needs root.
- planning: processor seconds and memory of planning a transformer of 32 layers over eight stages
  and 32 micro-batches.

On a CPU give it eight virtual devices: `XLA_FLAGS=--xla_force_host_platform_device_count=8
NPROC=32`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ....agents import examples
from ....partitioning import CoShard, Mesh, Pipeline, Simulator, parse_schedule
from ....partitioning.mesh import parse_mesh
from ....partitioning.partition import Partitioned, partition
from ....partitioning.simulator.calibration import Calibration, calibrate
from . import links, network
from .ranking import spearman

#: (mesh, tactics before the pipeline, schedule, micro-batches), each a table of its own.
TABLES = (
    ("stage=8", "", "gpipe", 4),
    ("stage=8", "", "gpipe", 8),
    ("stage=8", "", "gpipe", 32),
    ("stage=8", "", "1f1b", 4),
    ("stage=8", "", "1f1b", 8),
    ("stage=8", "", "1f1b", 32),
    ("stage=8", "", "zero-bubble", 8),
    ("stage=8", "", "zero-bubble", 32),
    ("stage=8", "", "interleaved", 8),
    ("stage=8", "", "dualpipe-v", 16),
    ("data=2,stage=4", "batch:data", "1f1b", 4),
    ("data=2,stage=4", "batch:data", "1f1b", 16),
    ("data=2,stage=4", "batch:data", "gpipe", 8),
    ("data=4,stage=2", "batch:data", "1f1b", 8),
)
_RANKED = {"batch": 512, "num_layers": 16, "width": 128, "hidden": 256, "optimizer": "adam"}
#: (model, sizes): models of the tests, larger.
MEMORY = (
    ("mlp", {"batch": 512, "num_layers": 4, "width": 128, "hidden": 512, "optimizer": "adam"}),
    (
        "transformer",
        {
            **{"batch": 64, "num_layers": 4, "width": 128, "num_heads": 4, "length": 64},
            **{"vocabulary": 512, "optimizer": "adam", "clip": 1.0},
        },
    ),
    (
        "transformer",
        {
            **{"batch": 64, "num_layers": 4, "width": 64, "num_heads": 4, "length": 32},
            **{"vocabulary": 512, "tied": True, "dropout": 0.1, "padding": True},
        },
    ),
    ("dqn", {"batch_size": 1024, "features": 64, "hidden_sizes": (512, 512, 512)}),
    ("mpo", {"batch_size": 256, "features": 64, "hidden_sizes": (256, 256)}),
    ("impala", {"batch_size": 64, "rollout_length": 16, "features": 64}),
    ("bc", {"batch_size": 1024, "features": 64, "hidden_sizes": (512, 512)}),
)
#: One layer, of which attention needs nearly all memory.
_ATTENTION = {
    **{"batch": 1, "length": 2048, "num_heads": 16, "width": 128, "vocabulary": 64},
    **{"num_layers": 1, "bias": False},
}
PARTS = (1, 4, 8)
SCHEDULES = ("gpipe", "1f1b", "zero-bubble")
_PLANNED = {
    **{"batch": 64, "length": 32, "width": 64, "vocabulary": 256},
    **{"optimizer": "adam", "clip": 1.0},
}


@dataclasses.dataclass(frozen=True)
class TableTimes:
    """Seconds of one table, predicted and measured."""

    mesh: str
    schedule: str
    microbatches: int
    predicted: float
    measured: float
    processor: float


def ranking(rounds: int, calibration: Calibration) -> dict[str, Any]:
    """Predicts and measures every table; rounds go over all of them."""
    simulator = Simulator(calibration.device, calibration.topology)
    example = examples.make("mlp", **_RANKED)
    given = example.init(jax.random.PRNGKey(0)), example.make_batch(jax.random.PRNGKey(1))
    cases = []
    for mesh, before, name, count in TABLES:
        schedule = [*parse_schedule(before), Pipeline("stage", count, name)]
        step = partition(example.update, Mesh(parse_mesh(mesh).axes), schedule, simulate=simulator)
        predicted = step.plan(*given).steps[-1].simulation.predicted_seconds.total
        made = step.compile(*given)
        run = jax.jit(made.step)  # type: ignore[union-attr]
        arguments = _packed(step, given)
        jax.block_until_ready(run(*arguments))
        cases.append((run, arguments, predicted))
    least = _least([functools.partial(run, *arguments) for run, arguments, _ in cases], rounds)
    rows = [
        TableTimes(f"{mesh} {before}".strip(), name, count, predicted, *times)
        for (mesh, before, name, count), (_, _, predicted), times in zip(
            TABLES, cases, least, strict=True
        )
    ]
    told = [row.predicted for row in rows]
    return {
        "spearman": round(spearman(told, [row.measured for row in rows]), 3),
        "spearman_processor": round(spearman(told, [row.processor for row in rows]), 3),
        "rows": [dataclasses.asdict(row) for row in rows],
    }


def _least(runs: Sequence[Callable[[], Any]], rounds: int) -> list[tuple[float, float]]:
    """The least seconds of each run, wall and processor; each round makes all of them."""
    least = [(float("inf"), float("inf"))] * len(runs)
    for _ in range(rounds):
        for i, run in enumerate(runs):
            wall, processor = time.perf_counter(), time.process_time()
            jax.block_until_ready(run())
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
            least[i] = min(least[i][0], wall), min(least[i][1], processor)
    return least


def _packed(step: Partitioned, given: tuple[Any, Any]) -> tuple[Any, list[Any]]:
    """The arguments of the program of all devices, the state packed as a loop of steps holds it."""
    made: Any = step.compile(*given)
    program = made.plan.pipeline
    leaves = jax.device_put(jax.tree.leaves(given), list(made.in_shardings))
    arrays = dict(zip(program.step.program.inputs, leaves, strict=True))
    state = made.packing.pack([arrays[v] for v in program.state])
    others = [x for v, x in arrays.items() if v not in program.after]
    return jax.block_until_ready((state, others))


def memory(schedules: Sequence[str]) -> list[dict[str, Any]]:
    """Bytes of a device, predicted and compiled."""
    found = []
    for model, sizes in MEMORY:
        example = examples.make(model, **sizes)
        shapes = example.state_shapes, example.batch_shapes
        for name in schedules:
            step = partition(
                example.update, Mesh({"stage": 2}), [Pipeline("stage", 4, name)],
                donate=("state",), simulate=Simulator("h100"),
            )  # fmt: skip
            predicted = step.plan(*shapes).steps[-1].simulation.peak_memory_bytes
            made = step.lower(*shapes).compile().memory_analysis()
            compiled = _nbytes(made)
            found.append(
                {
                    "model": model,
                    "schedule": name,
                    "predicted": predicted,
                    "compiled": compiled,
                    "error": round(predicted / compiled - 1, 3),
                }
            )
            print(json.dumps(found[-1]), flush=True)
    return found


def _nbytes(analysis: Any) -> int:
    """The bytes that a device needs, by the compiler."""
    both = analysis.argument_size_in_bytes + analysis.output_size_in_bytes
    return int(both + analysis.temp_size_in_bytes - analysis.alias_size_in_bytes)


def co_sharding(rounds: int) -> list[dict[str, Any]]:
    """Bytes and seconds of a step with attention in parts; the first row is the whole."""
    example = examples.make("transformer", **_ATTENTION)
    given = example.init(jax.random.PRNGKey(0)), example.make_batch(jax.random.PRNGKey(1))
    rows: list[dict[str, Any]] = []
    steps = []
    for parts in PARTS:
        wanted = CoShard(parts, ("state/params/**/attention/**",)) if parts > 1 else None
        step = partition(
            example.update, Mesh({"data": 1}), [], co_shard=wanted, simulate=Simulator("h100")
        )
        predicted = step.plan(*given).steps[-1].simulation.peak_memory_bytes
        compiled = step.lower(*given).compile()
        nbytes = _nbytes(compiled.memory_analysis())
        jax.block_until_ready(step(*given))
        steps.append(step)
        rows.append({"parts": parts, "compiled": nbytes, "predicted": predicted})
    best = _least([functools.partial(step, *given) for step in steps], rounds)
    for row, (wall, processor) in zip(rows, best, strict=True):
        row |= {
            "memory": round(row["compiled"] / rows[0]["compiled"], 3),
            "seconds": round(wall, 4),
            "processor_seconds": round(processor, 4),
            "time": round(wall / best[0][0], 3),
            "processor_time": round(processor / best[0][1], 3),
        }
        print(json.dumps(row), flush=True)
    return rows


def planning(layers: int) -> dict[str, Any]:
    """Processor seconds and memory of planning, and the sizes of programs."""
    example = examples.make("transformer", num_layers=layers, **_PLANNED)
    shapes = example.state_shapes, example.batch_shapes
    before = _resident()
    began = time.process_time()
    mesh = Mesh({"stage": 8})
    schedule = [Pipeline("stage", 32)]
    step = partition(example.update, mesh, schedule, simulate=Simulator("h100"))
    print(step.plan(*shapes))
    return {
        "layers": layers,
        "processor_seconds": round(time.process_time() - began, 1),
        "resident_mib": round(_resident() / 2**20),
        "of_planning_mib": round((_resident() - before) / 2**20),
    }


def _resident() -> int:
    """The most bytes that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


_PARTS = ("ranking", "memory", "co-shard", "links", "planning")


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m troupe.baselines.speed.laboratory.pipelines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=20, help="timed runs of each table")
    parser.add_argument("--layers", type=int, default=32, help="of the transformer planned")
    parser.add_argument("--calibration", metavar="FILE", help="that calibrate().save() wrote")
    parser.add_argument("--only", choices=_PARTS, help="one part alone")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    options = parser.parse_args(argv)
    found: dict[str, Any] = {"jax": jax.__version__}
    if options.only in (None, "planning"):
        found["planning"] = planning(options.layers)
    if options.only in (None, "memory"):
        found["memory"] = memory(SCHEDULES)
    if options.only in (None, "co-shard"):
        found["co-shard"] = co_sharding(options.rounds)
    if options.only in (None, "ranking"):
        known = options.calibration
        calibration = Calibration.load(known) if known else calibrate(jax.devices()[:8])
        found["ranking"] = ranking(options.rounds, calibration)
        for row in sorted(found["ranking"]["rows"], key=lambda row: row["measured"]):
            print(
                f"{row['mesh']:<28}{row['schedule']:<14}{row['microbatches']:>4}"
                f"{1e3 * row['predicted']:>12.2f}{1e3 * row['measured']:>12.2f} ms"
                f"{1e3 * row['processor']:>12.2f} ms of processors"
            )
        print(f"Spearman {found['ranking']['spearman']}")
    if options.only == "links" and (reason := network.why_not()):
        parser.error(f"no namespaces can be made here: {reason}")
    if options.only == "links" or (options.only is None and not network.why_not()):
        rows = links.measure()
        found["links"] = [dataclasses.asdict(row) for row in rows]
        print(links.table(rows))
    if options.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
