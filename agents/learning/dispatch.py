"""How gradient steps are given to the device.

On CPU a call hands its program to a thread and waits for it, unless told otherwise: a choice of an
action took 400 us so, and 105 us in the caller's thread (one core, jax 0.6.2, two hidden layers of
64); see `configure_cpu`. A loop of steps is as fast as the steps laid out, and compiles once;
convolutions need help for that, see `convolutions`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax

from .. import leading
from ..replay.items import Sample
from . import virtual

Nest = Any


def configure_cpu() -> None:
    """Makes calls on CPU run in the caller's thread. Call it before jax touches a device.

    With several CPU devices in the process nothing is changed: they need to run side by side.
    """
    if (virtual.asked_for() or _num_cpu_devices()) <= 1:
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


def without_keys(sample: Sample) -> Sample:
    """A batch as an update sees it: what names its items stays on the host, with its 64 bits."""
    return sample._replace(info=sample.info._replace(keys=None))


def on_device(sample: Sample, *, drop: int = 0, times: int = 1) -> Sample:
    """The shapes of a batch as an update sees it, without keys and 64 bits.

    Args:
      sample: arrays or shapes.
      drop: leading dimensions to leave out.
      times: by which the first dimension behind them is longer.
    """

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        rows, *rest = leaf.shape[drop:]
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return jax.ShapeDtypeStruct((rows * times, *rest), dtype)

    return jax.tree.map(shape, without_keys(sample))


def fuse(step: Callable, num_steps: int) -> Callable:
    """Several gradient steps as one program.

    Args:
      step: `(state, batch) -> (state, output)`.
      num_steps: K; every array of the fused program's batch is [K, ...], so is its output.
    """
    if num_steps == 1:

        def single(state, batches):
            state, output = step(state, jax.tree.map(lambda x: x[0], batches))
            return state, jax.tree.map(lambda x: x[None], output)

        return single
    return lambda state, batches: jax.lax.scan(step, state, batches)


def in_lots(step_lot: Callable, num_steps: int, lot: int) -> Callable:
    """Several gradient steps as one program, of an agent that takes so many together.

    Args:
      step_lot: `(state, batches) -> (state, output)`, of L steps: every array of the batches is
        [L, ...], so is its output.
      num_steps: K, as of `fuse`; a multiple of L.
      lot: L.
    """
    step_lots = fuse(step_lot, num_steps // lot)

    def run(state: Nest, batches: Nest) -> tuple[Nest, Nest]:
        lots = leading.split(batches, -1, lot)
        state, output = step_lots(state, lots)
        return state, leading.merge(output)

    return run
