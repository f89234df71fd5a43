"""The devices and threads of this process, and of processes that are yet to start."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from . import compilation

if TYPE_CHECKING:
    from ... import partitioning

COLLECTIVES = threading.RLock()
"""Held while programs over several devices are begun, which must not be interleaved on them."""
_FLAG = "--xla_force_host_platform_device_count"


def configure_cpu() -> None:
    """Makes calls on CPU run in the caller's thread. Call it before jax touches a device.

    With several CPU devices in the process nothing is changed: they need to run side by side.
    Programs that are compiled are kept for the next start (see `compilation`).
    """
    compilation.keep_compiled()
    if (virtual_devices() or _num_cpu_devices()) <= 1:
        jax.config.update("jax_cpu_enable_async_dispatch", False)


def require_devices() -> None:
    """Raises ValueError where jax has none of the devices that JAX_PLATFORMS asks for.

    Not before `configure_cpu`, nor where processes are yet to be joined.
    """
    try:
        jax.local_devices()
    except (RuntimeError, AssertionError) as error:  # An assertion says nothing.
        asked = os.environ.get("JAX_PLATFORMS", "")
        reason = " ".join(str(error).split())
        raise ValueError(
            f"JAX_PLATFORMS is {asked!r}, and jax finds no such device here"
            f"{f' ({reason})' if reason else ''}; unset it, or set it to cpu."
        ) from error


def _num_cpu_devices() -> int:
    return jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]


def virtual_devices() -> int | None:
    """Virtual CPU devices that this process was started with; None where nothing is said."""
    found = re.search(rf"{_FLAG}=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return int(found.group(1)) if found else None


def with_virtual_devices(count: int | None) -> dict[str, str]:
    """Variables for a process with so many virtual CPU devices; None: with none.

    Other flags are kept. With several devices jax 0.6 also wants a wider pool of threads, or
    un-blocked steps deadlock.
    """
    flags = re.sub(rf"{_FLAG}=\d+", "", os.environ.get("XLA_FLAGS", ""))
    if count is None:
        return {"XLA_FLAGS": flags.strip()}
    return {"XLA_FLAGS": f"{flags} {_FLAG}={count}".strip(), "NPROC": str(max(32, 4 * count))}


@dataclasses.dataclass(frozen=True)
class Devices:
    """The devices of a step, as a planner needs to know them.

    Attributes:
      platform: cpu, gpu or tpu.
      device_kind: as jax names it, such as "NVIDIA H100 80GB HBM3".
      per_process: devices that each process has.
      processes: how many processes share the step.
      memory_bytes: of one device; None: what its kind has, or of CPU devices their share of the
        host's.
    """

    platform: str
    device_kind: str
    per_process: int
    processes: int = 1
    memory_bytes: int | None = None

    def memory_stats(self) -> Mapping[str, int] | None:
        """The device's memory, in the form of `jax.Device.memory_stats`."""
        return None if self.memory_bytes is None else {"bytes_limit": self.memory_bytes}


def here(devices: Sequence[Any] | None = None) -> Devices:
    """Describes devices of this process, and of those that it is joined with.

    Args:
      devices: those of a mesh; None: all.
    """
    devices = jax.devices() if devices is None else devices
    first = devices[0]
    try:
        stats = first.memory_stats() or {}
    except Exception:  # Some back ends have none and say so by raising.
        stats = {}
    return Devices(
        "gpu" if first.platform in ("cuda", "rocm") else first.platform,
        str(first.device_kind),
        len(jax.local_devices(backend=first.client.platform)),
        len({one.process_index for one in devices}),
        stats.get("bytes_limit"),
    )


def topology() -> partitioning.Topology:
    """The links of all devices of this process, and of those that it is joined with."""
    from ... import partitioning  # Only who has a mesh pays for it.

    devices = here()
    return partitioning.hosts_topology(devices.device_kind, devices.per_process, devices.processes)


def elsewhere(platform: str, per_process: int, processes: int = 1) -> Devices:
    """Describes devices of processes yet to start, without touching any.

    Args:
      platform: cpu, gpu or tpu.
      per_process: devices that each will have.
      processes: how many.
    """
    kind = {"cpu": "cpu", "gpu": gpu_model()}.get(platform, platform)
    return Devices(platform, kind, per_process, processes)


def gpu_model() -> str:
    """The model of this machine's first GPU as its driver names it; "gpu" where none tells."""
    for path in sorted(pathlib.Path("/proc/driver/nvidia/gpus").glob("*/information")):
        found = re.search(r"Model:\s*(.+)", path.read_text())
        if found:
            return found.group(1).strip()
    return "gpu"
