"""Whether a learner that is to have a GPU has one: without, it would be on the CPU in silence."""

from __future__ import annotations

import pathlib

import jax

from ..errors import RequestError

_ADVICE = "leave out --learner-device gpu, or install jax with CUDA where there is one"


def require_any() -> None:
    """Raises RequestError where this machine has no GPU; touches none."""
    devices = [*pathlib.Path("/dev").glob("nvidia[0-9]*"), *pathlib.Path("/dev").glob("kfd")]
    if not devices and not pathlib.Path("/dev/dxg").exists():
        raise RequestError(f"the learner's device is gpu, and this machine has none; {_ADVICE}.")


def require_own() -> None:
    """Raises RequestError where jax computes on the CPU in this process."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        raise RequestError(
            f"the learner's device is gpu, and jax finds only {device.device_kind} here; {_ADVICE}."
        )
