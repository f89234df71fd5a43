"""Hands gradient steps to the device.

On CPU a call runs its program in another thread and waits for it, unless configured otherwise. That
makes choosing an action take four times as long as in the caller's thread; see
`runtime.configure_cpu`. A loop of steps is as fast as the unrolled steps, and compiles once;
convolutions need help for that, see `convolutions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .. import leading_axes
from ..interfaces import Update
from ..replay.items import Sample

Nest = Any


def without_keys(sample: Sample) -> Sample:
    """The batch as an update sees it: the items' keys stay on the host, with their 64 bits."""
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


def strongly_typed(update: Update) -> Update:
    """Wraps an update so that its states have no weakly typed arrays.

    An array made of Python numbers alone is weakly typed (`jnp.full((), 0.0)`). A program is
    compiled anew for a state that differs in weak types, so a learner would be compiled again
    after each step that loses one.
    """

    def strong(state: Nest) -> Nest:
        return jax.tree.map(_strong, state)

    def stronger(step: Callable) -> Callable:
        def run(state, sample):
            state, output = step(state, sample)
            return strong(state), output

        return run

    steps = update.steps
    return update._replace(
        init=lambda key: strong(update.init(key)),
        step=stronger(update.step),
        steps=None if steps is None else lambda num_steps: stronger(steps(num_steps)),
    )


def _strong(x: Any) -> Any:
    weak = getattr(x, "weak_type", False)  # Keys have no such attribute.
    return jax.lax.convert_element_type(x, x.dtype) if weak else x


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


def fuse_update(update: Update, num_steps: int) -> Callable:
    """Fuses K steps of an update: by its own `steps` where it has them, else as of `fuse`."""
    if update.steps is not None:
        return update.steps(num_steps)
    return fuse(update.step, num_steps)


def copy_variables(update: Update, state: Nest, names: tuple[str, ...]) -> list[Nest]:
    """Returns copies of the named variables, which outlive a state that is donated."""
    variables = update.variables(state)
    return jax.tree.map(jnp.copy, [variables[name] for name in names])


def in_blocks(step_block: Callable, num_steps: int, size: int) -> Callable:
    """Fuses blocks of gradient steps into one program, for an agent that takes a block together.

    Args:
      step_block: `(state, batches) -> (state, output)`, of L steps: every array of the batches is
        [L, ...], so is its output.
      num_steps: K, as of `fuse`; a multiple of L.
      size: L.
    """
    step_blocks = fuse(step_block, num_steps // size)

    def run(state: Nest, batches: Nest) -> tuple[Nest, Nest]:
        state, output = step_blocks(state, leading_axes.split(batches, -1, size))
        return state, leading_axes.merge(output)

    return run
