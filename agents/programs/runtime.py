"""Virtual devices of the CPU, which are asked for in the environment before jax looks for any."""

from __future__ import annotations

import os
import re

_FLAG = "--xla_force_host_platform_device_count"


def asked_for() -> int | None:
    """How many virtual devices this process was started with; None where nothing is said."""
    found = re.search(rf"{_FLAG}=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return int(found.group(1)) if found else None


def environment(devices: int | None) -> dict[str, str]:
    """Variables for a process with so many virtual devices; None: with none, its other flags kept.

    With several, jax 0.6 also wants a wider pool of threads, or un-blocked steps deadlock.
    """
    flags = re.sub(rf"{_FLAG}=\d+", "", os.environ.get("XLA_FLAGS", ""))
    if devices is None:
        return {"XLA_FLAGS": flags.strip()}
    return {"XLA_FLAGS": f"{flags} {_FLAG}={devices}".strip(), "NPROC": str(max(32, 4 * devices))}
