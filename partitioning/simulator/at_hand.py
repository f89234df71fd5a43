"""The device that jax would run a step on, as far as that is known without starting a backend."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import pathlib
from typing import Any

import jax
from jax._src import xla_bridge  # jax says nowhere publicly whether backends are there.

from .device import Device
from .presets import get_device, told_by

#: What is planned for where no accelerator is at hand.
ASSUMED = "h200"
#: Where NVIDIA's driver tells the names of its devices.
_DRIVER = pathlib.Path("/proc/driver/nvidia/gpus")


def device_at_hand() -> Device:
    """The preset of the accelerator that jax runs on here; where none is known, that of an H200.

    A backend that runs is asked, for its memory too. Before that the driver of NVIDIA's devices is,
    as a backend takes most of their memory from others.
    """
    kind, limit = _running() if xla_bridge.backends_are_initialized() else (_installed(), None)
    name = told_by(kind) if kind is not None else None
    if name is None:
        why = "no accelerator is at hand" if kind is None else f"no preset is known of {kind}"
        return dataclasses.replace(get_device(ASSUMED), chosen=f"assumed, as {why}")
    device = dataclasses.replace(get_device(name), chosen="the device at hand")
    if limit is None:
        return device
    return dataclasses.replace(device, memory_bytes=limit, limit="as jax hands out here")


def choose_device(device: str | Device) -> Device:
    """A device by name, path or itself as `get_device` has it; "auto" is the one at hand.

    Raises:
      ValueError: as of `get_device`.
    """
    return device_at_hand() if device == "auto" else get_device(device)


def _running() -> tuple[str | None, int | None]:
    """(kind, bytes that jax hands out) of the first device, where that is no CPU."""
    device: Any = jax.devices()[0]
    if device.platform == "cpu":
        return None, None
    stats = device.memory_stats() or {}
    return str(device.device_kind), stats.get("bytes_limit")


def _installed() -> str | None:
    """The name of the first of NVIDIA's devices, where jax may run on it."""
    if not _DRIVER.exists():
        return None
    platforms = jax.config.jax_platforms or os.environ.get("JAX_PLATFORMS") or "cuda"
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    if not {"cuda", "gpu"}.intersection(platforms.split(",")) or not any(
        "cuda" in plugin.name for plugin in plugins
    ):
        return None
    for path in sorted(_DRIVER.glob("*/information")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            title, _, text = line.partition(":")
            if title == "Model":
                return text.strip()
    return None
