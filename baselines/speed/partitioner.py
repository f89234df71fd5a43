"""Measures planning beside compiling, steps beside others' steps, and calls beside jit's.

Also measures how long it takes to profile and to simulate a step that is traced.

`python -m troupe.baselines.speed.partitioner --json` measures all in one run, on eight virtual CPU
devices.
Variants take turns within each round, and only ratios within a round are compared, so that a busy
machine blurs all alike.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from ...agents import examples
from ...agents.programs import runtime
from ...partitioning import models, parse_mesh, parse_schedule
from ...partitioning.ir.trace import trace
from ...partitioning.models import handwritten
from ...partitioning.partition import Partitioned, partition
from ...partitioning.simulator import profile, simulate

_PARTS = ("planning", "simulating", "stepping", "calling")
_SCHEDULES = ("batch:data", "batch:data,zero3:data", "batch:data,megatron:model,zero3:data")
_TRANSFORMER = {"batch": 16, "length": 32, "width": 64, "optimizer": "adam", "clip": 1.0}
_MLP = {"batch": 256, "num_layers": 4, "width": 128, "hidden": 512, "optimizer": "adam"}
#: Steps on a mesh of one device, and how much longer than under jit they may take.
CALLS: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("dqn", {"batch_size": 32, "features": 8, "hidden_sizes": (32, 32)}, 1.15),
    ("sac", {"batch_size": 64, "features": 8, "hidden_sizes": (64, 64), "actions": 2}, 1.15),
    ("mlp", {"batch": 64, "num_layers": 3, "width": 256, "hidden": 512}, 1.02),
)


def planning(num_layers: int, schedule: str, mesh: str, rounds: int) -> dict[str, Any]:
    """Seconds to plan a transformer's step and to compile the result; medians over the rounds."""
    example = models.make("transformer", num_layers=num_layers, **_TRANSFORMER)
    shapes = example.state_shapes, example.batch_shapes
    seconds: dict[str, list[float]] = {"trace": [], "plan": [], "lower": [], "compile": []}
    ops = 0
    for _ in range(rounds):
        jax.clear_caches()
        gc.collect()
        seconds["trace"].append(_timed(lambda: jax.make_jaxpr(example.update)(*shapes)))
        jax.clear_caches()
        step = partition(example.update, parse_mesh(mesh), parse_schedule(schedule))

        def plan(step: Partitioned = step) -> None:
            nonlocal ops
            ops = len(step.plan(*shapes).program.ops)

        seconds["plan"].append(_timed(plan))
        run = step.compile(*shapes)
        started = time.perf_counter()
        lowered = run.lower()
        seconds["lower"].append(time.perf_counter() - started)
        seconds["compile"].append(_timed(lowered.compile))
    plans = [
        (p - t) / c
        for p, t, c in zip(*(seconds[k] for k in ("plan", "trace", "compile")), strict=True)
    ]
    return {
        "layers": num_layers,
        "schedule": schedule,
        "mesh": mesh,
        "ops": ops,
        **{f"{name}_seconds": round(statistics.median(s), 4) for name, s in seconds.items()},
        "plan_over_compile": round(
            statistics.median(
                p / c for p, c in zip(seconds["plan"], seconds["compile"], strict=True)
            ),
            4,
        ),
        "plan_without_trace_over_compile": round(statistics.median(plans), 4),
    }


def simulating(num_layers: int, schedule: str, mesh: str, rounds: int) -> dict[str, Any]:
    """Seconds to profile a traced step of a transformer, and to simulate it as partitioned.

    Medians over the rounds.
    """
    example = models.make("transformer", num_layers=num_layers, **_TRANSFORMER)
    shapes = example.state_shapes, example.batch_shapes
    traced = trace(example.update, *shapes)
    plan = partition(example.update, parse_mesh(mesh), parse_schedule(schedule)).plan(*shapes)
    candidate, axes = plan.program, parse_mesh(mesh).axes
    seconds: dict[str, list[float]] = {"profile": [], "simulate": []}
    for _ in range(rounds):
        seconds["profile"].append(_timed(lambda: profile(traced)))
        seconds["simulate"].append(
            _timed(lambda: simulate(candidate, "h200", mesh=axes, donated=("state",)))
        )
    return {
        "layers": num_layers,
        "ops": len(candidate.ops),
        **{f"{name}_seconds": round(statistics.median(s), 4) for name, s in seconds.items()},
    }


def stepping(name: str, schedule: str, mesh: str, rounds: int, **sizes: Any) -> dict[str, Any]:
    """Seconds per step: ours, the compiler's with the same shardings and, for the MLP, by hand."""
    example = models.make(name, **sizes)
    arguments = models.mid_training(example)
    ours = partition(example.update, parse_mesh(mesh), parse_schedule(schedule), donate=("state",))
    plan = ours.plan(*arguments)
    jax_mesh = ours.mesh.jax_mesh()

    def sharded(specs: Any) -> Any:
        return jax.tree_util.tree_map(lambda spec: NamedSharding(jax_mesh, spec), specs)

    inputs, outputs = sharded(plan.input_shardings), sharded(plan.output_shardings)
    variants: dict[str, tuple[Callable[..., Any], Any]] = {
        "partitioned": (ours, inputs),
        "compiler": (
            jax.jit(example.update, in_shardings=inputs, out_shardings=outputs, donate_argnums=0),
            inputs,
        ),
    }
    if name == "mlp":
        model = "model" if "megatron" in schedule else None
        step, *specs = handwritten.mlp_step(example, jax_mesh, model, "zero3" in schedule)
        placed = tuple(sharded(spec) for spec in specs)
        variants["handwritten"] = (jax.jit(step, donate_argnums=0), placed)
    seconds = _take_turns(variants, arguments, rounds)
    result: dict[str, Any] = {
        "model": name,
        "schedule": schedule,
        "mesh": mesh,
        "collectives": plan.collectives,
        "seconds": {name: round(statistics.median(s), 6) for name, s in seconds.items()},
    }
    for other in list(variants)[1:]:
        ratios = [a / b for a, b in zip(seconds["partitioned"], seconds[other], strict=True)]
        result[f"over_{other}"] = round(statistics.median(ratios), 4)
    return result


def calling(name: str, rounds: int, most: float, **sizes: Any) -> dict[str, Any]:
    """Seconds per step on a mesh of one device beside `jax.jit`, with batches of numpy and of jax.

    Args:
      name: of the model.
      rounds: how often both take their turn.
      most: the ratio that is aimed at.
      **sizes: of the model.
    """
    example = examples.make(name, **sizes)
    state, batch = models.mid_training(example)
    ours = partition(
        example.update, parse_mesh("data=1"), parse_schedule("batch:data"), donate=("state",)
    )
    plain = jax.jit(example.update, donate_argnums=0)
    result: dict[str, Any] = {"model": name, "leaves": len(jax.tree.leaves((state, batch)))}
    for kind, fed in (("numpy", jax.device_get(batch)), ("jax", batch)):
        variants: dict[str, Any] = {"partitioned": (ours, None), "jit": (plain, None)}
        seconds = _take_turns(variants, (state, fed), rounds)
        ratios = [a / b for a, b in zip(seconds["partitioned"], seconds["jit"], strict=True)]
        result[f"{kind}_seconds"] = {n: round(statistics.median(s), 6) for n, s in seconds.items()}
        result[f"{kind}_over_jit"] = round(statistics.median(ratios), 4)
    return {**result, "most": most}


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the row, printed to standard error while the rest is measured."""
    print("  ".join(f"{key}={value}" for key, value in row.items()), file=sys.stderr, flush=True)
    return row


def _take_turns(
    variants: dict[str, tuple[Callable[..., Any], Any]], arguments: Any, rounds: int
) -> dict[str, list[float]]:
    """Seconds per step of each variant in each round; the order turns round by round.

    The state of each is its own; a batch without a sharding is fed as it is.
    """
    states, batches = {}, {}
    for name, (step, shardings) in variants.items():
        if shardings is None:
            state, batches[name] = jax.tree.map(jax.numpy.copy, arguments[0]), arguments[1]
        else:
            state, batches[name] = jax.device_put(arguments, shardings)
        for _ in range(3):  # What is weakly typed at first is not in the end.
            state = jax.block_until_ready(step(state, batches[name]))[0]
        states[name] = state
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    steps = 1
    for turn in range(-1, rounds):
        for name in names:
            step, state, batch = variants[name][0], states[name], batches[name]
            started = time.perf_counter()
            for _ in range(steps):
                state = step(state, batch)[0]
                # One step at a time: virtual devices that run ahead of each other only wait longer.
                jax.block_until_ready(state)
            taken = (time.perf_counter() - started) / steps
            states[name] = state
            if turn >= 0:
                seconds[name].append(taken)
        if turn < 0:
            steps = max(1, round(0.1 / max(taken, 1e-4)))
        names = names[1:] + names[:1]
    return seconds


def _timed(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m troupe.baselines.speed.partitioner", description=__doc__
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument(
        "--layers",
        default="2,8,32",
        help="of the transformers planned and simulated (default 2,8,32)",
    )
    parser.add_argument("--compiles", type=int, default=3, help="rounds of planning (default 3)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of stepping (default 15)")
    parser.add_argument("--only", choices=_PARTS, help="measure one part alone")
    options = parser.parse_args(argv)

    found: dict[str, Any] = {
        "versions": {"python": sys.version.split()[0], "jax": jax.__version__},
        "machine": {"cores": os.cpu_count(), "devices": len(jax.devices())},
    }
    layers = [int(number) for number in options.layers.split(",") if number]
    if options.only in (None, "planning"):
        found["planning"] = []
        for number in layers:
            row = planning(number, _SCHEDULES[-1], "data=4,model=2", options.compiles)
            found["planning"].append(shown(row))
    if options.only in (None, "simulating"):
        found["simulating"] = []
        for number in layers:
            row = simulating(number, _SCHEDULES[-1], "data=4,model=2", options.rounds)
            found["simulating"].append(shown(row))
    if options.only in (None, "stepping"):
        found["stepping"] = []
        for name, sizes in (("mlp", _MLP), ("transformer", {**_TRANSFORMER, "num_layers": 2})):
            for schedule in _SCHEDULES:
                mesh = "data=4,model=2" if "model" in schedule else "data=8"
                row = stepping(name, schedule, mesh, options.rounds, **sizes)
                found["stepping"].append(shown(row))
    if options.only in (None, "calling"):
        found["calling"] = [
            shown(calling(name, options.rounds, most, **sizes)) for name, sizes, most in CALLS
        ]
    if options.json:
        print(json.dumps(found, indent=2))


def _with_virtual_devices() -> None:
    """Starts this command again with eight CPU devices, which are asked for before jax is there."""
    wanted = {**runtime.with_virtual_devices(8), "JAX_PLATFORMS": "cpu"}
    if runtime.virtual_devices() != 8 or "NPROC" not in os.environ:
        command = [sys.executable, "-m", "troupe.baselines.speed.partitioner", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **wanted})


if __name__ == "__main__":
    _with_virtual_devices()
    main()
