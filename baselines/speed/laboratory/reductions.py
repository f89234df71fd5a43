"""Sums between hosts, at once and level by level.

    python -m troupe.baselines.speed.laboratory.reductions

On the two hosts of :mod:`.network`, a partitioned step that does nothing but sum is run as it is
and with its sum as other programs, at several rates of the cable and sizes.
Seconds and the bytes that a host sends are predicted, and measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from . import network

RATES = (50, 100, 200, 400, 1000)
SIZES = (1 << 18, 1 << 20, 1 << 22)
#: How long a program is timed at a rate and size, and how often it is run to count what it sends.
_SECONDS, _COUNTED = 2.0, 3
FLAT = "all_reduce(cable x host)"
BY_LEVEL = "reduce_scatter(host), all_reduce(cable), all_gather(host)"


@dataclasses.dataclass(frozen=True)
class Reduction:
    """One way to sum over all devices, predicted and measured.

    Attributes:
      rate: of the cable, Mbit/s each way.
      nbytes: of the array on each device.
      program: the steps in words.
      chosen: whether it is what was predicted to be quickest.
      predicted, measured: seconds.
      predicted_bytes, sent_bytes: what a host sends over the cable.
    """

    rate: int
    nbytes: float
    program: str
    chosen: bool
    predicted: float
    measured: float
    predicted_bytes: float
    sent_bytes: float


def sums(rate: int, sizes: Sequence[int]) -> list[Reduction]:
    """Measures and predicts sums on all hosts, for one rate [Mbit/s]."""
    import jax
    import jax.numpy as jnp

    from .... import partitioning as pt
    from ....partitioning.compiled import explicit
    from ....partitioning.placement.place import hierarchy
    from ....partitioning.placement.synthesis import reduction_programs, text_of
    from ....partitioning.placement.writing import written

    count = network.HOSTS * network.DEVICES
    kinds = ("all_reduce", "reduce_scatter", "all_gather")
    inside = [(kind, size) for kind in kinds for size in (1 << 12, *sizes)]
    _, _, topology = network.hierarchy(rate, inside)
    simulator = pt.Simulator(pt.nearest(jax.devices()[0], count), topology)
    mesh = pt.Mesh({"data": count})
    lies = hierarchy(simulator, mesh.axes)
    levels = [(axis,) for axis in tuple(lies.parts["data"])[::-1]]
    found = []
    for size in sizes:
        struct = jax.ShapeDtypeStruct((count, size // 4), jnp.float32)
        tactic = pt.Manual("rows", {"x": 0}, "data")
        step = pt.partition(lambda x: jnp.sum(x, axis=0), mesh, [tactic])
        local = step.plan(struct).program
        (op,) = [op for op in local.walk() if op.name == "all_reduce"]
        best = lies.best(op).text or FLAT
        x = _ones(struct, step.compile(struct).in_shardings[0])
        runs, rows = [], []
        for program in reduction_programs(len(levels)):
            text = text_of(program, [level.name for level in topology.levels])
            if text not in (FLAT, BY_LEVEL, best):
                continue
            taken = functools.partial(_taken, levels, program)
            run = explicit(written(local, lies.mesh, lies.parts, taken), mesh.in_parts(lies.parts))
            runs.append(jax.jit(run))
            costs = lies.steps(program, levels, struct.shape[1:], float(size))
            row = Reduction(
                rate, float(size), text, text == best,
                predicted=sum(lies.seconds(*cost) for cost in costs), measured=0.0,
                predicted_bytes=sum(lies.crossing(*cost).get("cable", 0.0) for cost in costs),
                sent_bytes=0.0,
            )  # fmt: skip
            rows.append(row)
        for row, (seconds, sent) in zip(rows, _timed(runs, x, rounds(rate, size)), strict=True):
            found.append(dataclasses.replace(row, measured=seconds, sent_bytes=sent))
    return found


def rounds(rate: int, nbytes: int) -> int:
    """Returns the number of runs: some seconds of them, the same on all hosts."""
    once = 8 * nbytes / (rate * 1e6)
    return min(max(int(_SECONDS / once), 5), 51)


def _taken(levels: Any, program: Any, op: Any) -> Any:
    """The same program for every sum."""
    del op
    return levels, program


def _ones(struct: Any, sharding: Any) -> Any:
    """An array over several processes."""
    import jax
    import numpy as np

    return jax.make_array_from_callback(
        struct.shape, sharding, lambda at: np.ones((1, *struct.shape[1:]), struct.dtype)
    )


def _timed(runs: Sequence[Any], x: Any, repeats: int) -> list[tuple[float, float]]:
    """Of each: median seconds of a call, and the bytes that this host sent for one.

    They are timed in turn: else one would get what the machine did meanwhile.
    """
    import jax

    sent: list[float] = []
    took: list[list[float]] = [[] for _ in runs]
    for run in runs:
        jax.block_until_ready(run(x))
        before = _sent_so_far()
        for _ in range(_COUNTED):
            jax.block_until_ready(run(x))
        sent.append((_sent_so_far() - before) / _COUNTED)
    for _ in range(repeats):
        for run, seconds in zip(runs, took, strict=True):
            started = time.perf_counter()
            jax.block_until_ready(run(x))
            seconds.append(time.perf_counter() - started)
    return [(statistics.median(t), s) for t, s in zip(took, sent, strict=True)]


def _sent_so_far() -> int:
    """Returns the bytes that this host has sent, once the last of them is on the cable."""
    before, now = -1, _sent()
    while now != before:
        time.sleep(0.05)
        before, now = now, _sent()
    return now


def _sent() -> int:
    """Bytes that left this network namespace over its cable."""
    for line in pathlib.Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == "eth0":
            return int(figures.split()[8])
    raise RuntimeError("there is no eth0 here")


def in_order(rows: Sequence[Reduction]) -> tuple[int, int]:
    """Of how many pairs of programs, of one rate and size, the quicker was predicted; of all."""
    right, pairs = 0, 0
    for one, other in itertools.combinations(rows, 2):
        if (one.rate, one.nbytes) == (other.rate, other.nbytes):
            pairs += 1
            right += (one.predicted < other.predicted) == (one.measured < other.measured)
    return right, pairs


def table(rows: Sequence[Reduction]) -> str:
    """The reductions as a Markdown table, and what they say in all."""
    lines = [
        "| Mbit/s | MiB | program | ms: predicted | measured | MiB: predicted | sent | chosen |",
        "|---|---|---|---|---|---|---|---|",
    ]
    cases: dict[tuple[int, float], list[Reduction]] = {}
    for r in rows:
        cases.setdefault((r.rate, r.nbytes), []).append(r)
        lines.append(
            f"| {r.rate} | {r.nbytes / 2**20:.3g} | {r.program} | {r.predicted * 1e3:.1f} | "
            f"{r.measured * 1e3:.1f} | {r.predicted_bytes / 2**20:.2f} | "
            f"{r.sent_bytes / 2**20:.2f} | {'yes' if r.chosen else ''} |"
        )
    lines.append("")
    right = 0
    for (rate, nbytes), ways in cases.items():
        flat = next(r for r in ways if r.program == FLAT)
        chosen = next(r for r in ways if r.chosen)
        right += chosen is min(ways, key=lambda r: r.measured)
        lines.append(
            f"{rate} Mbit/s, {nbytes / 2**20:.3g} MiB: {flat.measured / chosen.measured:.2f} times "
            "as fast as at once."
        )
    ordered, pairs = in_order(rows)
    worst = max(abs(r.sent_bytes / r.predicted_bytes - 1) for r in rows)
    lines.append(
        f"The quickest was chosen in {right} of {len(cases)} cases, {ordered} of {pairs} pairs are "
        f"in the order that was predicted; bytes are within {worst:.1%}."
    )
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table, and writes it with the figures where --out says."""
    parser = argparse.ArgumentParser(
        prog="troupe.baselines.speed.laboratory.reductions", description=__doc__
    )
    parser.add_argument("--rates", type=int, nargs="+", default=RATES, help="Mbit/s of the cable")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker is not None:
        network.work(args.worker, args.sizes, sums)
        return 0
    if reason := network.why_not():
        print(f"reductions: no namespaces can be made here: {reason}", file=sys.stderr)
        return 2
    found = network.measured_by(f"{__package__}.reductions", args.rates, args.sizes)
    print(json.dumps(found, indent=1) if args.json else table([Reduction(**r) for r in found]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
