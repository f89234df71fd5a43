"""Recurrent networks: cores that are unrolled over windows of rows, and begin anew with episodes.

Letters: B batch, T time, D features, H units. A core's state is a nest of [B, ...]; that of an LSTM
or GRU stays float32 whatever its inputs are, as sums over time are kept in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from .. import leading_axes
from .core import dummy, with_float32_parameters

Nest = Any
Cell = Callable[[jax.Array, Nest], tuple[jax.Array, Nest]]
"""`(projected input [B, G], state) -> (output [B, H], state)`, without haiku."""


class Core(NamedTuple):
    """The recurrent part of a network, to be called inside a haiku transform.

    Attributes:
      initial_state: of one stream, without B; what an episode begins with.
      unroll: `(x [B, T, D], state, first [B, T], burn_in=0) -> (output [B, T, H], state)`. Where
        `first` is true an episode begins, and the state before that row is the initial one.
        `burn_in` rows only warm the state up: no gradient goes back to them from those behind, but
        in windows that begin an episode, of which every row may be learned from.
    """

    initial_state: Nest
    unroll: Callable[..., tuple[jax.Array, Nest]]


def memoryless() -> Core:
    """No memory: outputs are the inputs."""
    return Core((), lambda x, state, first, burn_in=0: (x, state))


def deep(cores: Sequence[Core]) -> Core:
    """Cores on top of one another, each fed by the one before; their states as a tuple."""

    def unroll(
        x: jax.Array, state: Nest, first: jax.Array, burn_in: int = 0
    ) -> tuple[jax.Array, Nest]:
        states = []
        for core, before in zip(cores, state, strict=True):
            x, after = core.unroll(x, before, first, burn_in)
            states.append(after)
        return x, tuple(states)

    return Core(tuple(core.initial_state for core in cores), unroll)


class LSTMState(NamedTuple):
    hidden: jax.Array
    cell: jax.Array


def lstm(size: int) -> Core:
    """Long short-term memory (Hochreiter and Schmidhuber, 1997) with H = `size` units.

    With a forget gate that is open at first (Jozefowicz et al., 2015,
    https://proceedings.mlr.press/v37/jozefowicz15.html).
    """
    initial = LSTMState(jnp.zeros(size), jnp.zeros(size))
    return Core(initial, lambda *args: _LSTM(size, name="lstm")(initial, *args))


def gru(size: int) -> Core:
    """Gated recurrent units (Cho et al., 2014, https://arxiv.org/abs/1406.1078), H = `size`."""
    initial = jnp.zeros(size)
    return Core(initial, lambda *args: _GRU(size, name="gru")(initial, *args))


class _Recurrent(hk.Module):
    """Inputs are projected for all rows at once; the scan has only what needs the state."""

    gates: int

    def __init__(self, size: int, name: str):
        super().__init__(name)
        self._size = size

    def __call__(
        self, initial: Nest, x: jax.Array, state: Nest, first: jax.Array, burn_in: int = 0
    ) -> tuple[jax.Array, Nest]:
        projected = hk.Linear(self.gates * self._size, name="input")(x)
        w_init = hk.initializers.TruncatedNormal(self._size**-0.5)
        w = hk.get_parameter("w", (self._size, self.gates * self._size), x.dtype, init=w_init)
        outputs, state = _scan(self._cell(w), initial, projected, state, first, burn_in)
        return outputs.astype(x.dtype), state

    def _cell(self, w: jax.Array) -> Cell:
        raise NotImplementedError


class _LSTM(_Recurrent):
    gates = 4

    def _cell(self, w: jax.Array) -> Cell:
        def cell(x, state):
            i, g, f, o = jnp.split(x + state.hidden.astype(w.dtype) @ w, 4, axis=-1)
            c = jax.nn.sigmoid(f + 1.0) * state.cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return h, LSTMState(h, c)

        return cell


class _GRU(_Recurrent):
    gates = 3

    def _cell(self, w: jax.Array) -> Cell:
        size = self._size

        def cell(x, h):
            of_h = h.astype(w.dtype) @ w[:, : 2 * size]
            z, r = jnp.split(jax.nn.sigmoid(x[..., : 2 * size] + of_h), 2, axis=-1)
            candidate = jnp.tanh(x[..., 2 * size :] + (r * h).astype(w.dtype) @ w[:, 2 * size :])
            h = (1.0 - z) * h + z * candidate
            return h, h

        return cell


def _scan(
    cell: Cell, initial: Nest, x: jax.Array, state: Nest, first: jax.Array, burn_in: int
) -> tuple[jax.Array, Nest]:
    """Steps a cell over time, [B, T, ...]; see `Core.unroll`."""

    def where(flags: jax.Array, new: Nest, old: Nest) -> Nest:
        return jax.tree.map(lambda a, b: jnp.where(flags[:, None], a, b), new, old)

    def step(state, row):
        x, first, is_cut = row
        state = where(first, initial, state)
        if burn_in:
            state = where(is_cut, jax.lax.stop_gradient(state), state)
        output, state = cell(x, state)
        return state, output

    first = jnp.asarray(first, bool)
    is_cut = (jnp.arange(x.shape[1]) == burn_in) & ~first[:, :1]
    rows = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), (x, first, is_cut))
    if x.shape[1] == 1:  # One step of an actor: no loop.
        state, output = step(state, jax.tree.map(lambda leaf: leaf[0], rows))
        return output[:, None], state
    state, outputs = jax.lax.scan(step, state, rows)
    return jnp.swapaxes(outputs, 0, 1), state


class RecurrentNetwork(NamedTuple):
    """A network with a memory, as pure functions.

    Attributes:
      init: `key -> params`.
      initial_state: of one stream; what an episode begins with.
      unroll: `(params, observation [B, T, ...], state [B, ...], first [B, T], burn_in=0) ->
        (output [B, T, ...], state)`, see `Core`.
      step: `(params, observation, state) -> (output, state)`, of one observation, for policies.
    """

    init: Callable[[jax.Array], Nest]
    initial_state: Nest
    unroll: Callable[..., tuple[Nest, Nest]]
    step: Callable[[Nest, Nest, Nest], tuple[Nest, Nest]]


def make_recurrent(
    observations: Nest,
    torso: Callable[[Nest], Nest],
    core: Core,
    head: Callable[[Any], Nest],
) -> RecurrentNetwork:
    """A recurrent network from its parts; torso and head see all rows as one batch.

    Parameters are float32, whatever the torso's features are; the head is given float32.

    Args:
      observations: their spec.
      torso: `observation [M, ...] -> [M, D]`, called inside a haiku transform; without a memory
        any nest of features will do.
      core: `lstm`, `gru`, `transformer.gated_transformer`, `memoryless`, or `deep` ones.
      head: `[M, H] -> outputs [M, ...]`, likewise.
    """

    def module(observation: Nest, state: Nest, first: jax.Array, burn_in: int) -> Any:
        rows = first.shape
        features = leading_axes.split(torso(leading_axes.merge(observation)), *rows)
        hidden, state = core.unroll(features, state, first, burn_in)
        given = jax.tree.map(lambda x: x.astype(jnp.float32), leading_axes.merge(hidden))
        return leading_axes.split(head(given), *rows), state

    transformed: Any = hk.without_apply_rng(hk.transform(with_float32_parameters(module)))
    never = jnp.zeros((1, 1), bool)

    def init(key: jax.Array) -> Nest:
        state = jax.tree.map(lambda x: x[None], core.initial_state)
        return transformed.init(key, dummy(observations, 1, 1), state, never, 0)

    def unroll(
        params: Nest, observation: Nest, state: Nest, first: jax.Array, burn_in: int = 0
    ) -> tuple[Nest, Nest]:
        return transformed.apply(params, observation, state, first, burn_in)

    def step(params: Nest, observation: Nest, state: Nest) -> tuple[Nest, Nest]:
        one = jax.tree.map(lambda x: jnp.asarray(x)[None, None], observation)
        before = jax.tree.map(lambda x: x[None], state)
        output, after = unroll(params, one, before, never)
        return jax.tree.map(lambda x: x[0, 0], output), jax.tree.map(lambda x: x[0], after)

    return RecurrentNetwork(init, core.initial_state, unroll, step)
