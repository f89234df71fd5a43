"""Schedules with and without stages over a slow link, predicted and measured.

    python -m troupe.baselines.speed.laboratory.links

On the two hosts of :mod:`.network`, with one device each, a learner step with large parameters and
small activations runs under known schedules, as a search splits it, and as a pipeline with one
stage a host. A device is taken to have 85 % of the memory that the whole step needs: what leaves
all state on every device does not fit. It is timed, and no rival. (A model so small is quickest
whole, on one device; it stands for those that need several.) The machine and the cable are measured
with small kernels and messages; every step time is predicted from those, and measured.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from . import network

RATES = (100,)
#: Widths of the hidden layers.
WIDTHS = (512,)
#: Sizes of the model besides.
SIZES = {"batch": 256, "num_layers": 8, "width": 256, "optimizer": "adam"}
#: (mesh, tactics).
KNOWN = (
    ("data=2", ""),
    ("data=2", "batch:data"),
    ("data=2", "batch:data,zero3:data"),
    ("model=2", "megatron:model"),
    ("data=2", "auto:data"),
)
#: (schedule, micro-batches).
PIPELINES = (("1f1b", 2), ("1f1b", 4), ("1f1b", 8), ("gpipe", 4), ("zero-bubble", 4))
_STAGES = "stage=2"
_REPEATS = 9
#: Of the bytes that a step needs on one device, those that a device has.
_MEMORY = 0.85
#: Bytes that a simulator takes as text, at most.
_TEXT = 1 << 18


@dataclasses.dataclass(frozen=True)
class LinkTimes:
    """One schedule over the cable.

    Attributes:
      rate: of the cable, Mbit/s each way.
      hidden: width of the hidden layers.
      mesh, schedule: as a command line takes them.
      is_pipeline: True with stages.
      fits: True if the device's memory holds it, as predicted.
      predicted, measured: seconds of a step.
    """

    rate: int
    hidden: int
    mesh: str
    schedule: str
    is_pipeline: bool
    fits: bool
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Of the prediction, relative."""
        return self.predicted / self.measured - 1


def crossings(rate: int, widths: Sequence[int]) -> list[LinkTimes]:
    """Predicts and measures every schedule on all hosts, for one rate [Mbit/s]."""
    from ....agents import examples
    from ....partitioning import parse_schedule
    from ....partitioning.mesh import parse_mesh
    from ....partitioning.partition import partition
    from ....partitioning.simulator.presets import get_device

    machine = _simulator(rate)
    cases = [(mesh, before, parse_schedule(before), False) for mesh, before in KNOWN]
    for name, count in PIPELINES:
        text = f"pipeline:stage+{name}+{count}"
        cases.append((_STAGES, text, parse_schedule(text), True))
    found, runs = [], []
    for hidden in widths:
        example = examples.make("mlp", hidden=hidden, **SIZES)
        shapes = example.state_shapes, example.batch_shapes

        def planned(mesh: str, tactics: Any, by: Any, example: Any = example) -> Any:
            return partition(
                example.update, parse_mesh(mesh), tactics, simulate=by, donate=("state",)
            )

        whole = planned("data=2", (), machine).plan(*shapes).steps[-1].simulation
        device = dataclasses.replace(
            get_device(machine.device), memory_bytes=int(_MEMORY * whole.peak_memory_bytes)
        )
        simulator = dataclasses.replace(machine, device=device)
        for mesh, text, tactics, is_pipeline in cases:
            step = planned(mesh, tactics, simulator)
            cost = step.plan(*shapes).steps[-1].simulation
            seconds = cost.predicted_seconds.total
            found.append(LinkTimes(rate, hidden, mesh, text, is_pipeline, cost.fits, seconds, 0.0))
            runs.append(_bound(step, example))
    best = _least(runs)
    return [
        dataclasses.replace(row, measured=seconds) for row, seconds in zip(found, best, strict=True)
    ]


def _simulator(rate: int) -> Any:
    """The machine and the cable as the first host measures them: all plan alike."""
    import jax
    import numpy as np
    from jax.experimental.multihost_utils import broadcast_one_to_all

    from ....partitioning import Simulator
    from ....partitioning.simulator.fit import fit_device
    from ....partitioning.simulator.microbench import Bench
    from ....partitioning.simulator.topology import Topology

    bench = Bench(jax.devices(), _REPEATS)
    samples = [bench.step()]
    bench.step_seconds = samples[0].seconds
    samples += [
        bench.loop(), bench.vector(1 << 14), bench.transcendental(1 << 14),
        *(bench.results(count) for count in (1, 64)),
        *(bench.memory(1 << k) for k in range(10, 26, 3)),
        *(bench.straight(k, transposed) for k in (64, 256) for transposed in (False, True)),
        *(bench.matmul("float32", n, n, n) for n in (4, 16, 64, 128, 256, 512)),
    ]  # fmt: skip
    topology = Topology((network.cable_level(rate, bench, 1),))
    device = fit_device("this machine", "cpu", samples, 1 << 30)
    text = json.dumps(Simulator(device, topology).to_json()).encode()
    padded = np.frombuffer(text.ljust(_TEXT), np.uint8)
    return Simulator.from_json(json.loads(bytes(np.asarray(broadcast_one_to_all(padded)))))


def _bound(step: Any, example: Any) -> Callable[[], Any]:
    """A call of a step that goes on from the call before, with its arguments where they belong."""
    import jax
    import numpy as np

    given = example.init(jax.random.PRNGKey(0)), example.make_batch(jax.random.PRNGKey(1))
    made = step.compile(example.state_shapes, example.batch_shapes)

    def placed(array: Any, sharding: Any) -> Any:
        array = np.asarray(array)
        if not sharding.addressable_devices:
            return jax.make_array_from_single_device_arrays(
                array.shape, sharding, [], dtype=array.dtype
            )
        return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

    leaves = [placed(x, s) for x, s in zip(jax.tree.leaves(given), made.in_shardings, strict=True)]
    program = made.plan.pipeline
    if program is None:
        count = len(jax.tree.leaves(given[0]))
        held, batch = leaves[:count], leaves[count:]

        def run() -> Any:
            nonlocal held
            state, metrics = made([*held, *batch])
            held = jax.tree.leaves(state)
            return held, metrics

        return run
    arrays = dict(zip(program.step.program.inputs, leaves, strict=True))
    packed = made.packing.pack([arrays[v] for v in program.state])
    others = [x for v, x in arrays.items() if v not in program.after]
    step = jax.jit(made.step, donate_argnums=0)

    def run_packed() -> Any:
        nonlocal packed
        packed, results = step(packed, others)
        return packed, results

    return run_packed


def _least(runs: Sequence[Callable[[], Any]]) -> list[float]:
    """The least seconds of each, in turns: what else the machine does only adds to them."""
    import jax

    least = [float("inf")] * len(runs)
    for turn in range(_REPEATS + 1):
        for i, run in enumerate(runs):
            started = time.perf_counter()
            jax.block_until_ready(run())
            if turn:  # The first one compiles.
                least[i] = min(least[i], time.perf_counter() - started)
    return least


def best_of(rows: Sequence[LinkTimes], is_pipeline: bool, what: str) -> LinkTimes:
    """Of what fits the row of least seconds, "predicted" or "measured", with stages or without."""
    able = [r for r in rows if r.is_pipeline == is_pipeline and r.fits]
    return min(able, key=lambda row: getattr(row, what))


def gains(rows: Sequence[LinkTimes]) -> tuple[float, float]:
    """Returns the speed of the best pipeline over the best other schedule: predicted, measured.

    Each is best by the same seconds that are compared.
    """
    predicted, measured = (
        getattr(best_of(rows, False, what), what) / getattr(best_of(rows, True, what), what)
        for what in ("predicted", "measured")
    )
    return predicted, measured


def table(rows: Sequence[LinkTimes]) -> str:
    """The schedules as a Markdown table, and what they say in all."""
    lines = [
        "| Mbit/s | hidden | mesh | schedule | fits | ms: predicted | measured | error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    cases: dict[tuple[int, int], list[LinkTimes]] = {}
    for r in sorted(rows, key=lambda r: (r.rate, r.hidden, r.measured)):
        cases.setdefault((r.rate, r.hidden), []).append(r)
        lines.append(
            f"| {r.rate} | {r.hidden} | {r.mesh} | {r.schedule or '-'} "
            f"| {'yes' if r.fits else 'no'} | {r.predicted * 1e3:.0f} | {r.measured * 1e3:.0f} "
            f"| {r.error:+.0%} |"
        )
    lines.append("")
    for (rate, hidden), some in cases.items():
        predicted, measured = gains(some)
        worst = max(some, key=lambda r: abs(r.error))
        lines.append(
            f"{rate} Mbit/s, hidden layers of {hidden}: of what fits the best pipeline is "
            f"predicted to be {predicted:.2f} times as fast as the best other schedule, and is "
            f"{measured:.2f} times; the worst prediction is {worst.error:+.0%} off "
            f"({worst.schedule})."
        )
    return "\n".join(lines) + "\n"


def measure(rates: Sequence[int] = RATES, widths: Sequence[int] = WIDTHS) -> list[LinkTimes]:
    """Predicts and measures every schedule at these rates [Mbit/s] and widths."""
    found = network.measured_by(f"{__package__}.links", rates, widths, 1)
    return [LinkTimes(**row) for row in found]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table, and writes it with the figures where --out says."""
    return network.command(
        "links", __doc__, argv, (RATES, WIDTHS),
        lambda host, sizes: network.work(host, sizes, crossings),
        lambda found: table([LinkTimes(**row) for row in found]),
        1,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
