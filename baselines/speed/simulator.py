"""Holds predictions against one real device: `python -m troupe.baselines.speed.simulator
--out DIR`.

Calibrates the device, then measures step time and memory of training steps on it, each model in a
process of its own so that the allocator's high-water mark is the model's. Writes `validation.json`
(everything raw), `validation.md` (the table) and `programs.tar` (the optimised program of each
model).
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from typing import Any

from ...agents.examples import make

_AGENT = {"features": 64, "hidden_sizes": (512, 512), "actions": 8}
_TRANSFORMER = {
    "batch": 8,
    "length": 1024,
    "vocabulary": 32768,
    "width": 1024,
    "num_heads": 16,
    "num_layers": 6,
    "optimizer": "adam",
    "clip": 1.0,
}
LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer-bf16": ("transformer", {**_TRANSFORMER, "dtype": "bfloat16"}),
    "transformer-f32": ("transformer", _TRANSFORMER),
    "transformer-f32-scan-remat": (
        "transformer",
        {**_TRANSFORMER, "scan": True, "checkpoint": "nothing"},
    ),
    "residual_net": (
        "residual_net",
        {"batch": 256, "size": 64, "width": 64, "groups": 8, "classes": 100},
    ),
    "dqn": ("dqn", {**_AGENT, "batch_size": 256}),
    "c51": ("c51", {**_AGENT, "batch_size": 256, "num_atoms": 51}),
    "impala": ("impala", {**_AGENT, "batch_size": 64, "rollout_length": 20}),
    "ppo": ("ppo", {**_AGENT, "num_envs": 256, "rollout_length": 64}),
    "sac": ("sac", {**_AGENT, "batch_size": 256}),
    "mpo": ("mpo", {**_AGENT, "batch_size": 256}),
    "r2d2": (
        "r2d2",
        {
            **_AGENT,
            "batch_size": 64,
            "core_size": 256,
            "sequence_length": 40,
            "sequence_period": 40,
            "burn_in": 10,
        },
    ),
    "unet": ("unet", {"batch": 64, "size": 64, "width": 64, "groups": 8}),
}
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer-f32": (
        "transformer",
        {
            "batch": 8,
            "length": 32,
            "vocabulary": 128,
            "width": 64,
            "num_layers": 2,
            "optimizer": "adam",
        },
    ),
    "residual_net": ("residual_net", {"batch": 8, "size": 16, "width": 16}),
    "dqn": ("dqn", {"batch_size": 32, "features": 8, "hidden_sizes": (32, 32)}),
}


def measure(
    model: str, sizes: dict[str, Any], out: pathlib.Path, name: str, seconds: float
) -> dict[str, Any]:
    """Step time and memory of one example on the default device, and its program."""
    import jax

    example = make(model, **sizes)
    device = jax.devices()[0]
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        state, batch = (
            example.init(jax.random.PRNGKey(0)),
            example.make_batch(jax.random.PRNGKey(1)),
        )
    state, batch = jax.device_put((state, batch), device)
    started = time.perf_counter()
    compiled = jax.jit(example.update, donate_argnums=0).lower(state, batch).compile()
    compile_seconds = time.perf_counter() - started
    text = compiled.as_text()
    with gzip.open(out / f"{name}.hlo.txt.gz", "wt") as file:
        file.write(text or "")
    for _ in range(3):
        state, metrics = compiled(state, batch)
    jax.block_until_ready(metrics)
    runs: list[float] = []
    steps, spent = 1, 0.0
    while spent < seconds and len(runs) < 40:
        started = time.perf_counter()
        for _ in range(steps):
            state, metrics = compiled(state, batch)
        jax.block_until_ready((state, metrics))
        took = time.perf_counter() - started
        spent += took
        if took < 0.02 and steps < 1000:
            steps *= 2
        else:
            runs.append(took / steps)
    runs = runs or [took / steps]
    analysis = compiled.memory_analysis()
    stats = device.memory_stats() or {}
    cost: Any = compiled.cost_analysis() or {}  # None where the compiler does not tell
    return {
        "name": name,
        "model": model,
        "sizes": sizes,
        "step_seconds": statistics.median(runs),
        "best_seconds": min(runs),
        "compile_seconds": compile_seconds,
        "memory_analysis": {
            k: getattr(analysis, f"{k}_size_in_bytes")
            for k in ("argument", "output", "temp", "alias")
        },
        "allocator": {k: int(v) for k, v in stats.items()},
        "cost_analysis": {
            k: cost[k] for k in ("flops", "bytes accessed", "transcendentals") if k in cost
        },
        "kernels": kernel_times(compiled, state, batch),
    }


def kernel_times(compiled: Any, state: Any, batch: Any) -> list[dict[str, Any]]:
    """Names and durations of the kernels of one step, where jax's profiler gives them."""
    import tempfile

    import jax

    if jax.devices()[0].platform == "cpu" or not hasattr(jax.profiler, "ProfileData"):
        return []
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(compiled(state, batch))
        found: dict[tuple[str, str], list[float]] = {}
        for path in pathlib.Path(folder).rglob("*.xplane.pb"):
            data = jax.profiler.ProfileData.from_file(str(path))
            for plane in data.planes:
                if "GPU" not in plane.name and "TPU" not in plane.name:
                    continue
                for line in plane.lines:
                    for event in line.events:
                        entry = found.setdefault((line.name, event.name), [0, 0.0])
                        entry[0] += 1
                        entry[1] += event.duration_ns
    return [
        {"line": line, "name": name, "count": count, "nanoseconds": total}
        for (line, name), (count, total) in found.items()
    ]


def predict(result: dict[str, Any], device: Any) -> dict[str, Any]:
    """Returns the simulator's prediction for a step that `measure` measured."""
    from ...partitioning.ir.trace import trace
    from ...partitioning.simulator.simulate import simulate

    example = make(result["model"], **result["sizes"])
    program = trace(
        lambda state, batch: example.update(state, batch),
        example.state_shapes,
        example.batch_shapes,
    )
    found = simulate(program, device, donated=("state",))
    return found.to_json()


def compare(result: dict[str, Any]) -> dict[str, Any]:
    """Measured and predicted side by side."""
    predicted = result["predicted"]
    analysis = result["memory_analysis"]
    compiled = analysis["argument"] + analysis["output"] + analysis["temp"] - analysis["alias"]
    peak = result["allocator"].get("peak_bytes_in_use", compiled)
    seconds = predicted["predicted_seconds"]["total"]
    flops = result["cost_analysis"].get("flops")
    return {
        "name": result["name"],
        "measured_seconds": result["step_seconds"],
        "predicted_seconds": seconds,
        "time_error": seconds / result["step_seconds"] - 1,
        "allocator_peak": peak,
        "compiled_peak": compiled,
        "predicted_peak": predicted["peak_memory_bytes"],
        "memory_error": predicted["peak_memory_bytes"] / peak - 1,
        "flops_error": predicted["flops"] / flops - 1 if flops else None,
    }


def markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    rows = [compare(r) for r in report["models"] if "predicted" in r]
    versions = ", ".join(f"{k} {v}" for k, v in report["versions"].items())
    columns: tuple[str, ...] = ("model", "measured ms", "predicted ms", "error")
    columns += ("allocator MiB", "compiled MiB", "predicted MiB", "error")
    lines = [
        "# Predictions held against a device",
        "",
        f"{report['date']}, {report['device']} (driver's name), {versions}. One device; step",
        "time is the median of pipelined calls, memory the allocator's high-water mark.",
        "",
        "| " + " | ".join(columns) + " |",
        "|---" * len(columns) + "|",
    ]
    for r in rows:
        cells = [
            r["name"],
            f"{r['measured_seconds'] * 1e3:.3f}",
            f"{r['predicted_seconds'] * 1e3:.3f}",
            f"{r['time_error']:+.1%}",
            f"{r['allocator_peak'] / 2**20:.0f}",
            f"{r['compiled_peak'] / 2**20:.0f}",
            f"{r['predicted_peak'] / 2**20:.0f}",
            f"{r['memory_error']:+.1%}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    if rows:
        time_error = statistics.median(abs(r["time_error"]) for r in rows)
        memory_error = statistics.median(abs(r["memory_error"]) for r in rows)
        lines += ["", f"Median absolute error: time {time_error:.1%}, memory {memory_error:.1%}."]
    for name, why in report["left_out"].items():
        lines.append(f"\nNot measured: {name} ({why}).")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the validation, or with --model one measurement (used by the former)."""
    parser = argparse.ArgumentParser(prog="troupe.baselines.speed.simulator", description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the results")
    parser.add_argument(
        "--small", action="store_true", help="tiny models, to try the script itself on a CPU"
    )
    parser.add_argument(
        "--budget", type=float, default=440.0, help="seconds after which no model is begun"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of steps per model")
    parser.add_argument("--model", help="measure this model only, and write NAME.json")
    args = parser.parse_args(argv)
    models = SMALL if args.small else LARGE
    args.out.mkdir(parents=True, exist_ok=True)
    if args.model:
        model, sizes = models[args.model]
        found = measure(model, sizes, args.out, args.model, args.seconds)
        (args.out / f"{args.model}.json").write_text(json.dumps(found))
        return 0
    started = time.monotonic()
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    results, left_out = [], {}
    for name in models:
        left = args.budget - (time.monotonic() - started)
        if left < 20:
            left_out[name] = "no time left"
            continue
        command = [
            sys.executable,
            "-m",
            "troupe.baselines.speed.simulator",
            "--out",
            str(args.out),
        ]
        command += ["--model", name, "--seconds", str(args.seconds)] + ["--small"] * args.small
        try:
            run = subprocess.run(
                command,
                check=False,
                env=environment,
                capture_output=True,
                text=True,
                timeout=min(left, 180),
            )
        except subprocess.TimeoutExpired:
            left_out[name] = "took too long"
            continue
        path = args.out / f"{name}.json"
        if run.returncode or not path.exists():
            left_out[name] = (
                "failed: " + (run.stderr.strip().splitlines() or ["no message"])[-1][:200]
            )
            continue
        results.append(json.loads(path.read_text()))
        path.unlink()
        print(f"{name}: {results[-1]['step_seconds'] * 1e3:.3f} ms a step", flush=True)
    (args.out / "measured.json").write_text(json.dumps(results))
    report = finish(results, left_out)
    (args.out / "validation.json").write_text(json.dumps(report))
    (args.out / "validation.md").write_text(markdown(report))
    with tarfile.open(args.out / "programs.tar", "w") as archive:
        for path in sorted(args.out.glob("*.hlo.txt.gz")):
            archive.add(path, path.name)
            path.unlink()
    print(markdown(report))
    return 0


def finish(results: list[dict[str, Any]], left_out: dict[str, str]) -> dict[str, Any]:
    """Calibrates this process's first device and predicts what was measured."""
    import jax
    import jaxlib

    from ...partitioning.simulator.calibration import calibrate

    device = jax.devices()[0]
    calibration = calibrate(jax.devices()[:1])
    for result in results:
        result["predicted"] = predict(result, calibration.device)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "device": device.device_kind,
        "versions": {
            "python": sys.version.split()[0],
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
        },
        "calibration": calibration.to_json(),
        "models": results,
        "left_out": left_out,
    }


if __name__ == "__main__":
    sys.exit(main())
