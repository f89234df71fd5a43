"""The price of less memory by recomputation.

    python -m troupe.baselines.speed.laboratory.recompute --json

Two parts:

- predicted: a transformer of eight layers on an H200, kept to budgets from all that it needs down
  to a quarter: the memory and the time of what is found, relative to no recomputation.
- compiled: smaller ones, unrolled and scanned, for the CPU at hand: what the compiler says that a
  rewritten step needs, against what was predicted. jax 0.6 drops the barriers of unrolled programs
  on CPUs, so that there only loops need less; later ones keep them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import jax

from ....partitioning import Mesh, Recompute, Simulator, models
from ....partitioning.partition import Partitioned, partition
from ....partitioning.simulator.calibration import nearest
from ....partitioning.simulator.device import Device
from ....partitioning.simulator.presets import get_device
from ..partitioner import shown
from .cases import LARGE

SHARES = (1.0, 0.9, 0.75, 0.6, 0.5, 0.4, 0.3, 0.27, 0.25)
PREDICTED = {**LARGE, "num_layers": 8, "batch": 64}
COMPILED = {
    "num_layers": 4,
    "batch": 32,
    "width": 128,
    "num_heads": 4,
    "length": 64,
    "vocabulary": 512,
    "optimizer": "adam",
}
#: Code generation is most of a compilation and comes after buffers are assigned.
_QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def _step(example: models.Example, device: Device, share: float | None) -> Partitioned:
    recompute = None if share is None else Recompute(share)
    return partition(
        example.update,
        Mesh({"data": 1}),
        [],
        donate=("state",),
        simulate=Simulator(device),
        recompute=recompute,
    )


def budgets(
    sizes: dict[str, Any], device: Device, shares: Sequence[float], compiled: bool = False
) -> list[dict[str, Any]]:
    """Plans the step within each share of the memory that it needs without recomputation.

    A share that no plan meets ends the list, with what was said of it.

    Args:
      sizes: of a transformer.
      device: what it is planned for.
      shares: of the memory, falling.
      compiled: True compiles the step, for the devices at hand.
    """
    example = models.make("transformer", **sizes)
    shapes = example.state_shapes, example.batch_shapes
    whole = _step(example, device, None).plan(*shapes).steps[-1].simulation
    needs = whole.peak_memory_bytes
    found: list[dict[str, Any]] = []
    for share in shares:
        step = _step(example, dataclasses.replace(device, memory_bytes=needs), share)
        row: dict[str, Any] = {"scan": sizes.get("scan", False), "budget": share}
        try:
            last = step.plan(*shapes).steps[-1]
        except ValueError as error:
            found.append(shown({**row, "infeasible": str(error)}))
            break
        cost = last.simulation
        row |= {
            "regions": 0 if last.made is None else last.made.figures["regions"],
            "peak": round(cost.peak_memory_bytes / needs, 4),
            "seconds": round(cost.predicted_seconds.total / whole.predicted_seconds.total, 4),
        }
        if compiled:
            made = step.compile(*shapes).lower().compile(compiler_options=_QUICK)
            memory = made.memory_analysis()
            nbytes = (
                memory.argument_size_in_bytes
                + memory.output_size_in_bytes
                + memory.temp_size_in_bytes
                - memory.alias_size_in_bytes
            )
            row |= {
                "predicted_bytes": cost.peak_memory_bytes,
                "compiled_bytes": nbytes,
                "error": round(cost.peak_memory_bytes / nbytes - 1, 4),
            }
        found.append(shown(row))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m troupe.baselines.speed.laboratory.recompute",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--only", choices=("predicted", "compiled"), help="one part alone")
    options = parser.parse_args(argv)
    found: dict[str, Any] = {"jax": jax.__version__}
    if options.only in (None, "predicted"):
        found["predicted"] = budgets(PREDICTED, get_device("h200"), SHARES)
    if options.only in (None, "compiled"):
        device = nearest(jax.devices()[0], 1)
        found["compiled"] = [
            row
            for scan in (False, True)
            for row in budgets({**COMPILED, "scan": scan}, device, SHARES, compiled=True)
        ]
    if options.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
