"""The learner's program on one device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from ..interfaces import Update, UpdateOutput
from ..replay.items import Sample
from ..snapshots import typed
from . import compilation, convolutions, dispatch

Nest = Any


class LearnerProgram(Protocol):
    """The program that a learner runs, on one device or many."""

    state_shapes: Nest
    """Of the state, as `jax.ShapeDtypeStruct`, with shardings where there are several devices."""

    def init(self, key: jax.Array) -> Nest:
        """Returns the first state."""

    def place(self, sample: Sample) -> Sample:
        """A batch on the device, but for the items' keys. Any thread may call it."""

    def __call__(self, state: Nest, sample: Sample) -> tuple[Nest, UpdateOutput]:
        """K gradient steps, `(state, sample [K, B, ...]) -> (state, output [K, ...])`.

        The state is donated.
        """

    def variables(self, state: Nest, names: Sequence[str], keep: bool = True) -> list[Nest]:
        """Copies of the named variables on one device, which outlive the state."""

    def put(self, state: Nest) -> Nest:
        """Puts a saved state on the device; PRNG keys are made from their saved words."""

    def unpacked(self, state: Nest) -> Nest:
        """The state as the update has it, where a program holds it in another form."""


class PlainProgram:
    """K gradient steps on one device, as one program."""

    def __init__(self, update: Update, num_steps: int, device: jax.Device, key: jax.Array):
        self._update, self._num_steps, self._device = update, num_steps, device
        self._run: Callable[..., Any] | None = None
        self._copies = jax.jit(functools.partial(dispatch.copy_variables, update), static_argnums=1)
        self.state_shapes = jax.eval_shape(update.init, key)

    def init(self, key: jax.Array) -> Nest:
        init = compilation.compile_once(self._update.init, self._device)
        return jax.device_put(init(key), self._device)

    def place(self, sample: Sample) -> Sample:
        return jax.device_put(dispatch.without_keys(sample), self._device)

    def __call__(self, state: Nest, sample: Sample) -> tuple[Nest, UpdateOutput]:
        sample = dispatch.without_keys(sample)
        if self._run is None:
            fused = dispatch.fuse_update(self._update, self._num_steps)
            steps = convolutions.for_device(fused, self._device)
            self._run = jax.jit(steps, donate_argnums=0)
        return self._run(state, sample)

    def variables(self, state: Nest, names: Sequence[str], keep: bool = True) -> list[Nest]:
        return self._copies(state, tuple(names))

    def put(self, state: Nest) -> Nest:
        return jax.device_put(jax.tree.map(typed, state, self.state_shapes), self._device)

    def unpacked(self, state: Nest) -> Nest:
        return state
