"""Collectives between hosts, predicted and measured.

    python -m troupe.baselines.speed.laboratory.network

Makes two hosts of network namespaces, joined by a cable of limited rate (`tc tbf`), and on each a
process of jax with four virtual devices and gloo. Collectives inside a host, and the cable's
latency, are measured with small messages; every other figure is predicted from the rate, and
measured. Needs root, iproute2 and util-linux, and leaves nothing behind: a namespace goes with the
process that holds it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

HOSTS, DEVICES = 2, 4
RATES = (100, 400, 1000)
SIZES = (1 << 19, 1 << 21, 1 << 22)
#: What is left of a frame of 1514 bytes and its four of checksum for the payload of TCP.
PAYLOAD = 1448 / 1514
_ADDRESSES = ("10.99.0.1", "10.99.0.2")
_PORT = 7311
_PACKET = 1 << 14
#: Seconds of the cable that a packet takes, at most: what waits behind it is late by as much.
_HELD = 3e-4


@dataclasses.dataclass(frozen=True)
class Crossing:
    """One collective between hosts, predicted and measured.

    Attributes:
      rate: of the cable, Mbit/s each way.
      kind: the collective.
      devices: how many in a group: all, or one of each host, with as many groups as a host has
        devices.
      nbytes: of the gathered result, or of the operand of the others.
      predicted: seconds.
      measured: seconds.
    """

    rate: int
    kind: str
    devices: int
    nbytes: float
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Of the prediction, relative."""
        return self.predicted / self.measured - 1


def why_not() -> str:
    """Returns the reason why namespaces cannot be made here; "" if they can."""
    missing = [name for name in ("unshare", "nsenter", "ip", "tc") if not shutil.which(name)]
    if missing:
        return f"there is no {', '.join(missing)} (iproute2, util-linux)"
    command = ["unshare", "--net", "true"]
    tried = subprocess.run(command, check=False, capture_output=True, text=True)
    return tried.stderr.strip() if tried.returncode else ""


class Cable:
    """Two namespaces and a pair of interfaces between them."""

    def __init__(self, holders: Sequence[subprocess.Popen[str]]):
        self.holders = holders

    def inside(self, host: int, *command: str) -> list[str]:
        """The command that runs another one on a host."""
        return ["nsenter", "-t", str(self.holders[host].pid), "-n", *command]

    def limit(self, rate: int) -> None:
        """Lets so many Mbit/s through, each way."""
        packet = int(min(_PACKET, _HELD * rate * 1e6 / 8))
        for host in range(HOSTS):
            # The burst is what passes at once after a pause, whatever the rate: it has to be small
            # beside a message, and hold a packet.
            for line in (
                f"ip link set eth0 gso_max_size {packet}",
                f"tc qdisc replace dev eth0 root tbf rate {rate}mbit burst {2 * packet} limit 32mb",
            ):
                subprocess.run(self.inside(host, *line.split()), check=True)


@contextlib.contextmanager
def cable() -> Iterator[Cable]:
    """Makes the namespaces and removes them."""
    with contextlib.ExitStack() as stack:
        # A holder ends when its input does, and so even if this process is killed.
        holders = [
            stack.enter_context(
                subprocess.Popen(
                    ["unshare", "--net", "sh", "-c", "echo up; read end"],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                )
            )
            for _ in range(HOSTS)
        ]  # fmt: skip
        for holder in holders:
            assert holder.stdout is not None
            holder.stdout.readline()
        made = Cable(holders)
        pair = f"ip link add eth0 type veth peer name eth0 netns {holders[1].pid}"
        subprocess.run(made.inside(0, *pair.split()), check=True)
        for host, address in enumerate(_ADDRESSES):
            for line in (
                f"ip addr add {address}/24 dev eth0", "ip link set eth0 up", "ip link set lo up"
            ):  # fmt: skip
                subprocess.run(made.inside(host, *line.split()), check=True)
        yield made


def measure(rates: Sequence[int], sizes: Sequence[int]) -> list[Crossing]:
    """Predicts and measures every collective at these rates [Mbit/s] and sizes [bytes]."""
    return [Crossing(**row) for row in measured_by(f"{__package__}.network", rates, sizes)]


def measured_by(
    module: str, rates: Sequence[int], sizes: Sequence[int], devices: int = DEVICES
) -> list[dict[str, Any]]:
    """Rows that the hosts of a module measure: it is run on each with --worker and its number.

    Args:
      module: by its name.
      rates: of the cable [Mbit/s].
      sizes: handed to the module.
      devices: of each host.
    """
    found: list[dict[str, Any]] = []
    with cable() as made, contextlib.ExitStack() as stack:
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        }
        if devices > 1:
            environment["NPROC"] = "32"  # Devices that wait for each other each hold a thread.
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    made.inside(
                        host, sys.executable, "-m", module, "--worker", str(host),
                        "--sizes", *map(str, sizes),
                    ),
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
                )
            )
            for host in range(HOSTS)
        ]  # fmt: skip
        try:
            for rate in rates:
                made.limit(rate)
                for worker in workers:
                    assert worker.stdin is not None
                    worker.stdin.write(f"{rate}\n")
                    worker.stdin.flush()
                for worker in workers:
                    assert worker.stdout is not None
                    answer = worker.stdout.readline()
                    while answer.startswith("[Gloo]"):  # It tells of its connections there.
                        answer = worker.stdout.readline()
                    if not answer:
                        raise RuntimeError(f"a host ended at {rate} Mbit/s; its words are above")
                    if worker is workers[0]:
                        found += json.loads(answer)
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.close()
        except BaseException:
            for worker in workers:
                worker.kill()
            raise
    return found


def work(
    host: int, sizes: Sequence[int], measured: Callable[[int, Sequence[int]], Sequence[Any]]
) -> None:
    """One host: measures at every rate that comes in, until no more does; tells dataclasses."""
    _keep_cores(host)
    import jax
    from jax._src.lib import _jax

    made = _jax.make_gloo_tcp_collectives  # listens where the host's name leads, if not told
    _jax.make_gloo_tcp_collectives = lambda **kwargs: made(
        **{**kwargs, "hostname": _ADDRESSES[host]}
    )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"{_ADDRESSES[0]}:{_PORT}", HOSTS, host, cluster_detection_method="deactivate"
    )
    for line in sys.stdin:
        print(json.dumps([dataclasses.asdict(t) for t in measured(int(line), sizes)]), flush=True)


def _keep_cores(host: int) -> None:
    """Keeps this process to its host's share of the cores: hosts have none in common."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // HOSTS
    if each:
        os.sched_setaffinity(0, cores[host * each : (host + 1) * each])


def crossings(rate: int, sizes: Sequence[int]) -> list[Crossing]:
    """Measures and predicts collectives on all hosts, for one rate [Mbit/s]."""
    from ....partitioning.simulator.collectives import KINDS, collective_cost

    near, far, topology = hierarchy(rate, [("all_reduce", size) for size in (1 << 12, *sizes)])
    placed = topology.place({"host": HOSTS, "device": DEVICES})
    groups = {
        HOSTS * DEVICES: (near, (*placed["device"], *placed["host"])),
        HOSTS: (far, placed["host"]),
    }
    found = []
    for size in sizes:
        for kind in KINDS:
            for group, (bench, segments) in groups.items():
                measured = bench.collective(kind, size, group, times=1)
                cost = collective_cost(kind, measured.nbytes, segments, "gloo")
                found.append(
                    Crossing(rate, kind, group, measured.nbytes, cost.seconds, measured.seconds)
                )
    return found


def hierarchy(rate: int, near_by: Sequence[tuple[str, int]]) -> tuple[Any, Any, Any]:
    """The two hosts as a topology, from measurements inside a host and the cable's latency.

    Args:
      rate: of the cable [Mbit/s].
      near_by: the collectives that are measured inside a host: kind, bytes.

    Returns:
      A bench of all devices in order, one of them host by host, and the topology.
    """
    import jax
    import numpy as np

    from ....partitioning.simulator.fit import fit_topology
    from ....partitioning.simulator.microbench import Bench
    from ....partitioning.simulator.topology import Topology

    devices = list(jax.devices())
    across = list(np.array(devices).reshape(HOSTS, DEVICES).T.ravel())
    repeats = 5 if rate < 200 else 15
    near, far = Bench(devices, repeats), Bench(across, repeats)
    near.step_seconds = far.step_seconds = near.step().seconds
    inside = [near.collective(kind, size, DEVICES) for kind, size in near_by]
    host = dataclasses.replace(fit_topology(inside, DEVICES).levels[0], name="host")
    return near, far, Topology((host, cable_level(rate, far, DEVICES)))


def cable_level(rate: int, bench: Any, devices: int) -> Any:
    """The cable as a level of a topology, with the latency that is measured.

    Args:
      rate: of the cable [Mbit/s].
      bench: of all devices, host by host.
      devices: of each host.
    """
    from ....partitioning.simulator.topology import Level

    payload = rate * 1e6 / 8 * PAYLOAD
    # A ring of two has two steps; the smallest that there is takes little but latency.
    # Whatever else the machine does only adds to it: the least of some is the cable's own.
    small = [bench.collective("all_reduce", 1 << 12, HOSTS) for _ in range(5)]
    latency = min(max(s.seconds / 2 - devices * s.nbytes / 2 / payload, 0.0) for s in small)
    return Level("cable", HOSTS, payload, latency, sharing=devices)


def table(rows: Sequence[Crossing]) -> str:
    """The transfers as a Markdown table, with a summary."""
    lines = [
        "| Mbit/s | collective | devices in a group | KiB | predicted ms | measured ms | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        lines.append(
            f"| {r.rate} | {r.kind} | {r.devices} | {r.nbytes / 1024:.0f} | "
            f"{r.predicted * 1e3:.2f} | {r.measured * 1e3:.2f} | {r.error:+.0%} |"
        )
    errors = [abs(r.error) for r in rows]
    worst = max(rows, key=lambda r: abs(r.error))
    lines += [
        "",
        f"{len(rows)} transfers: median error {statistics.median(errors):.1%}, worst "
        f"{worst.error:+.0%} ({worst.kind} of {worst.nbytes / 1024:.0f} KiB among {worst.devices} "
        f"at {worst.rate} Mbit/s).",
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table, and writes it with the figures where --out says."""

    def rows(found: Sequence[dict[str, Any]]) -> str:
        return table([Crossing(**row) for row in found])

    return command(
        "network",
        __doc__,
        argv,
        (RATES, SIZES),
        lambda host, sizes: work(host, sizes, crossings),
        rows,
    )


def command(
    name: str,
    description: str | None,
    argv: Sequence[str] | None,
    defaults: tuple[Sequence[int], Sequence[int]],
    host: Callable[[int, Sequence[int]], None],
    table_of: Callable[[Sequence[dict[str, Any]]], str],
    devices: int = DEVICES,
) -> int:
    """The command of a module of this folder that measures between the two hosts.

    Prints the table, and writes NAME.md and NAME.json where --out says.

    Args:
      name: of the module.
      description: for --help.
      argv: arguments; None: those of the process.
      defaults: rates [Mbit/s] and sizes [bytes].
      host: the work of a host, of its number and the sizes.
      table_of: the table, from the rows that were measured.
      devices: of each host.

    Returns:
      The exit code: 2 where no namespaces can be made.
    """
    parser = argparse.ArgumentParser(
        prog=f"troupe.baselines.speed.laboratory.{name}", description=description
    )
    rates, sizes = defaults
    parser.add_argument("--rates", type=int, nargs="+", default=rates, help="Mbit/s of the cable")
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes, help="bytes")
    parser.add_argument("--out", type=pathlib.Path, help=f"folder for {name}.json and {name}.md")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker is not None:
        host(args.worker, args.sizes)
        return 0
    if reason := why_not():
        print(f"{name}: no namespaces can be made here: {reason}", file=sys.stderr)
        return 2
    found = measured_by(f"{__package__}.{name}", args.rates, args.sizes, devices)
    text = table_of(found)
    print(text, end="")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{name}.md").write_text(text, encoding="utf-8")
        (args.out / f"{name}.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
