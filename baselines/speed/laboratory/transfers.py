"""Transfers between the layouts of two hosts, predicted and measured.

    python -m troupe.baselines.speed.laboratory.transfers

Makes two hosts as `network` does. A learner's devices are on one, a sampler's on the other. What
crosses the cable is sent by the plan, copy by copy over one connection, and put together and
checked by value on the other side. The cable's latency and the host's memory are measured; all else
is predicted from the rate. Needs root, iproute2 and util-linux.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....partitioning.simulator.topology import Level, Topology
from ....partitioning.transfer import ArrayLayout, Copy, TransferPlan, plan
from . import network

RATES = (100, 400, 1000)
SIZES = (1 << 20, 1 << 22)
LEARNER, SAMPLER = range(4), range(4, 8)
_FOUR, _TWO = {"a": 4}, {"a": 2, "b": 2}
#: Name to mesh and spec at the learner, mesh and spec at the sampler.
CASES: Mapping[str, tuple[Any, Any, Any, Any]] = {
    "rows to rows": (_FOUR, ("a",), _FOUR, ("a",)),
    "rows to columns": (_FOUR, ("a",), _FOUR, (None, "a")),
    "tiles to rows": (_TWO, ("a", "b"), _FOUR, ("a",)),
    "rows to copies": (_FOUR, ("a",), _FOUR, ()),
    "copies to rows": (_FOUR, (), _FOUR, ("a",)),
    "rows to one": (_FOUR, ("a",), {"a": 1}, ()),
}
_ADDRESS = ("10.99.0.1", 7312)
_REPEATS = 3
_SIDE = 1 << 8
"""Rows of an array; it has as many columns as its bytes give."""


@dataclasses.dataclass(frozen=True)
class CrossedTransfer:
    """One transfer between the hosts, predicted and measured.

    Attributes:
      rate: of the cable, Mbit/s each way.
      case: one of `CASES`.
      nbytes: of the array.
      crossed: bytes over the cable.
      predicted: seconds.
      measured: seconds.
    """

    rate: int
    case: str
    nbytes: int
    crossed: int
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Of the prediction, relative."""
        return self.predicted / self.measured - 1


def planned(case: str, nbytes: int, topology: Topology) -> TransferPlan:
    """The plan of a case, for one array of float32 of so many bytes."""
    axes, spec, other_axes, other_spec = CASES[case]
    shape = (_SIDE, nbytes // 4 // _SIDE)
    numbers = SAMPLER[: 1 if other_axes == {"a": 1} else 4]
    source = ArrayLayout.of_spec(shape, np.float32, axes, spec, LEARNER)
    target = ArrayLayout.of_spec(shape, np.float32, other_axes, other_spec, numbers)
    return plan({"w": source}, {"w": target}, topology)


def _at(copy: Copy, of: Any) -> tuple[slice, ...]:
    pairs = zip(copy.block, of, strict=True)
    return tuple(slice(start - base, stop - base) for (start, stop), (base, _) in pairs)


def send(connection: socket.socket, found: TransferPlan) -> None:
    """The learner's part of a transfer: what leaves its host, in the plan's order."""
    whole = _values(found)
    shards = {
        device: whole[tuple(slice(*ends) for ends in block)]
        for device, block in found.source["w"].blocks.items()
    }
    connection.recv(1)
    for copy in found.copies:
        if copy.source in LEARNER:
            block = shards[copy.source][_at(copy, found.source["w"].blocks[copy.source])]
            connection.sendall(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)


def receive(connection: socket.socket, found: TransferPlan) -> float:
    """The sampler's part; returns its seconds.

    Raises:
      ValueError: if a device has other values than the array.
    """
    blocks = found.target["w"].blocks
    shards = {d: np.zeros([b - a for a, b in block], np.float32) for d, block in blocks.items()}
    start = time.perf_counter()
    connection.send(b"!")
    for copy in found.copies:
        at = _at(copy, blocks[copy.target])
        if copy.source in SAMPLER:
            shards[copy.target][at] = shards[copy.source][_at(copy, blocks[copy.source])]
            continue
        piece = np.empty([b - a for a, b in copy.block], np.float32)
        view = memoryview(piece.reshape(-1).view(np.uint8).data)
        while view:
            view = view[connection.recv_into(view) :]
        shards[copy.target][at] = piece
    seconds = time.perf_counter() - start
    whole = _values(found)
    for device, block in blocks.items():
        if not np.array_equal(shards[device], whole[tuple(slice(*ends) for ends in block)]):
            raise ValueError(f"device {device} has other values than it should")
    return seconds


def _values(found: TransferPlan) -> np.ndarray:
    shape = found.source["w"].shape
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def work(host: int, sizes: Sequence[int]) -> None:
    """One host: 0 is the sampler's, which measures at every rate that comes in."""
    connection = _joined(host)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for line in sys.stdin:
        rate, found = int(line), []
        latency = _latency(connection, host)
        level = Level("cable", 2, rate * 1e6 / 8 * network.PAYLOAD, latency, sharing=4)
        topology = Topology((Level("host", 4, _memory(), 0.0, sharing=4), level))
        for size in sizes:
            for case in CASES:
                made = planned(case, size, topology)
                run = receive if host == 0 else send
                times = [run(connection, made) for _ in range(_REPEATS)]
                if host == 0:
                    crossed = made.bytes_by_level["cable"]
                    measured = statistics.median(map(float, times))  # type: ignore[arg-type]
                    found.append(CrossedTransfer(rate, case, size, crossed, made.seconds, measured))
        print(json.dumps([dataclasses.asdict(one) for one in found]), flush=True)


def _joined(host: int) -> socket.socket:
    if host == 0:
        with socket.create_server(_ADDRESS) as server:
            return server.accept()[0]
    deadline = time.monotonic() + 30.0
    while True:
        try:
            return socket.create_connection(_ADDRESS, 5.0)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _latency(connection: socket.socket, host: int) -> float:
    """Seconds until a byte is there, the least of some; the other host answers."""
    times = []
    for _ in range(20):
        if host == 0:
            start = time.perf_counter()
            connection.send(b"?")
            connection.recv(1)
            times.append((time.perf_counter() - start) / 2)
        else:
            connection.send(connection.recv(1))
    return min(times, default=0.0)


def _memory() -> float:
    """Bytes per second that a copy within this host moves."""
    one = np.zeros(1 << 22, np.uint8)
    other = one.copy()
    start = time.perf_counter()
    np.copyto(other, one)
    return one.nbytes / (time.perf_counter() - start)


def table(rows: Sequence[CrossedTransfer]) -> str:
    """The transfers as a Markdown table, with a summary."""
    lines = [
        "| Mbit/s | layouts | KiB | KiB over the cable | predicted ms | measured ms | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        lines.append(
            f"| {r.rate} | {r.case} | {r.nbytes / 1024:.0f} | {r.crossed / 1024:.0f} | "
            f"{r.predicted * 1e3:.2f} | {r.measured * 1e3:.2f} | {r.error:+.0%} |"
        )
    worst = max(rows, key=lambda r: abs(r.error))
    lines += [
        "",
        f"{len(rows)} transfers: median error "
        f"{statistics.median(abs(r.error) for r in rows):.1%}, worst {worst.error:+.0%} "
        f"({worst.case}, {worst.nbytes / 1024:.0f} KiB at {worst.rate} Mbit/s).",
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table, and writes it with the figures where --out says."""

    def rows(found: Sequence[dict[str, Any]]) -> str:
        return table([CrossedTransfer(**row) for row in found])

    return network.command("transfers", __doc__, argv, (RATES, SIZES), work, rows)


if __name__ == "__main__":
    sys.exit(main())
