"""Holds predictions against one real device:
`python -m troupe.baselines.speed.laboratory.simulator --out DIR`.

Measures step time and memory of training steps, each model in a process of its own so that the
allocator's high-water mark is the model's, and prints what was predicted beside it. Predictions are
by a calibration of the device, made last, or by a preset: `--device h100`. With `--held-out` the
steps are those that no preset was made from. Writes `validation.json` (everything raw),
`validation.md` (the table) and `programs.tar` (the optimised program of each model).
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
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import jax
import jaxlib

from ....partitioning.ir.trace import trace
from ....partitioning.simulator.calibration import calibrate
from ....partitioning.simulator.presets import get_device
from ....partitioning.simulator.simulate import simulate
from .steps import HELD_OUT, LARGE, make, shrink


def measure(
    model: str, sizes: dict[str, Any], out: pathlib.Path, name: str, seconds: float
) -> dict[str, Any]:
    """Step time and memory of one example on the default device, and its program."""
    example = make(model, sizes)
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
        "device": device.device_kind,
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
    """Returns the prediction for a step that `measure` measured."""
    example = make(result["model"], result["sizes"])
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


def line(result: dict[str, Any]) -> str:
    """Returns what was predicted and measured, with the error; or what was measured alone."""
    if "predicted" not in result:
        return f"{result['name']}: {1e3 * result['step_seconds']:.3f} ms a step"
    row = compare(result)
    return (
        f"{result['name']}: {1e3 * row['predicted_seconds']:.3f} of "
        f"{1e3 * row['measured_seconds']:.3f} ms ({row['time_error']:+.1%}), "
        f"{row['predicted_peak'] / 2**20:.4g} of {row['allocator_peak'] / 2**20:.4g} MiB "
        f"({row['memory_error']:+.1%}; the compiler's figure {row['compiled_peak'] / 2**20:.4g}), "
        f"compiled in {result['compile_seconds']:.0f} s"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the validation, or with --model one measurement (used by the former)."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the results")
    parser.add_argument(
        "--held-out", action="store_true", help="steps that no preset was made from"
    )
    parser.add_argument(
        "--device", help="preset to predict by; without it the device is calibrated at the end"
    )
    parser.add_argument(
        "--small", action="store_true", help="tiny models, to try the script itself on a CPU"
    )
    parser.add_argument(
        "--budget", type=float, default=440.0, help="seconds after which no model is begun"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of steps per model")
    parser.add_argument("--model", help="measure this model only, and write NAME.json")
    args = parser.parse_args(argv)
    steps = HELD_OUT if args.held_out else LARGE
    args.out.mkdir(parents=True, exist_ok=True)
    if args.model:
        model, sizes = steps[args.model]
        sizes = shrink(sizes) if args.small else sizes
        found = measure(model, sizes, args.out, args.model, args.seconds)
        if args.device:
            found["predicted"] = predict(found, get_device(args.device))
        (args.out / f"{args.model}.json").write_text(json.dumps(found))
        return 0
    started = time.monotonic()
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    passed_on = list(sys.argv[1:] if argv is None else argv)
    results, left_out = [], {}
    for name in steps:
        left = args.budget - (time.monotonic() - started)
        if left < 20:
            left_out[name] = "no time left"
            continue
        try:
            run = subprocess.run(
                [sys.executable, "-m", __spec__.name, *passed_on, "--model", name],
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
        print(line(results[-1]), flush=True)
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
    """The report. Where a prediction is missing, this process's first device is calibrated for it.

    The device and the versions are those of the measurements, which tell them.
    """
    calibration = None
    for result in results:
        if "predicted" not in result:
            calibration = calibration or calibrate(jax.devices()[:1])
            result["predicted"] = predict(result, calibration.device)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "device": results[0]["device"] if results else "no device",
        "versions": {
            "python": sys.version.split()[0],
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
        },
        "calibration": calibration and calibration.to_json(),
        "models": results,
        "left_out": left_out,
    }


if __name__ == "__main__":
    sys.exit(main())
