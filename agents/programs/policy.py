"""The policy of many streams as a program, whose state stays where it is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..acting import policies
from ..interfaces import ActorCore
from ..snapshots import from_host
from .packing import Packing

Nest = Any
Parts = Sequence[jax.Array]
_Run = tuple[Callable[..., Parts], int, Callable[[Sequence[np.ndarray]], Nest]]
"""The program of batches of one size: parts of what it chooses, then of the state; the number of
the first, and the inverse of their packing."""


def fetch(parts: Sequence[jax.Array]) -> list[np.ndarray]:
    """Returns device arrays as numpy arrays, whose transfers run side by side."""
    for part in parts[1:]:
        part.copy_to_host_async()
    return [*map(np.asarray, parts)]


class PolicyProgram:
    """The policy of N streams on one device.

    A call takes observations and gives actions and extras back to the host, and nothing else: the
    state of the policy stays on the device, in its own dtypes, and is donated from call to call.
    """

    def __init__(
        self,
        policy: ActorCore,
        num_streams: int,
        *,
        device: jax.Device | None = None,
        has_extras: bool = True,
    ):
        """Compiles nothing yet.

        Args:
          policy: written for one observation.
          num_streams: N.
          device: that computes the policy; None: jax's default device.
          has_extras: False: extras are () whatever the policy stores, as nobody asks for them.
        """
        self._policy = policy if has_extras else policy._replace(get_extras=lambda *_: ())
        self._forgets = policy.reset is not None
        self._device = device or jax.local_devices()[0]
        self._row = jax.eval_shape(lambda: policy.init(jax.random.key(0)))
        self._begun = jax.jit(self._begin, static_argnames="counts")
        self._write = jax.jit(_write, donate_argnums=0)
        self._runs: dict[int, _Run] = {}
        self._given: Nest = object()  # Params are told by their identity; nobody has this one.
        self._params: Nest = None
        self._state: Parts = []
        self.num_streams = num_streams
        self._packing = Packing(self._like, by_rows=True)

    @property
    def _like(self) -> Nest:
        """The state as `jax.ShapeDtypeStruct`s."""
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((self.num_streams, *leaf.shape), leaf.dtype),
            self._row,
        )

    def init(self, keys: jax.Array, first_stream: int = 0) -> None:
        """Begins all streams.

        Args:
          keys: [N], one of each stream.
          first_stream: number of the first of them among all that act.
        """
        self._put(self._begun(keys, first_stream, 0, counts=False))

    def clear(self) -> None:
        """Makes room for the state of all streams, none of which has begun."""
        shapes = jax.eval_shape(self._packing.pack, self._like)
        self._put([np.zeros(shape.shape, shape.dtype) for shape in shapes])

    @property
    def is_lost(self) -> bool:
        """True if a call failed so late that the state given to it is gone."""
        return any(part.is_deleted() for part in self._state)

    def begin(
        self, rows: np.ndarray, keys: jax.Array, first_stream: int = 0, num_actions: int = 0
    ) -> None:
        """Begins some streams, as if each had taken `num_actions` actions; `clear` comes before.

        Args:
          rows: int32 [n], the numbers of these streams here.
          keys: [n], one of each.
          first_stream: number of the first of them among all that act.
          num_actions: where their schedules go on.
        """
        begun = self._begun(keys, first_stream, num_actions, counts=num_actions > 0)
        self._state = self._write(self._state, rows, begun)

    def _begin(self, keys: jax.Array, first_stream: Any, num_actions: Any, counts: bool) -> Parts:
        """The packed state of streams that begin; to be traced."""
        state = jax.vmap(self._policy.init)(keys)
        if self._policy.set_stream is not None:
            numbers = first_stream + jnp.arange(len(keys))
            state = jax.vmap(self._policy.set_stream)(state, numbers)
        if counts:
            change = jax.vmap(self._policy.set_num_actions, in_axes=(0, None))
            state = change(state, jnp.int32(num_actions))
        return self._packing.pack(state)

    def change(self, change: Callable[[Nest, Any], Nest], to: jax.Array) -> None:
        """Changes the state of all streams by a pure function `(state, to) -> state`."""
        changed = jax.jit(change)(from_host(self.save(), self._like), to)
        self._put(self._packing.pack(changed))

    def __call__(
        self, params: Nest, observation: Nest, first: np.ndarray, rows: np.ndarray | None = None
    ) -> tuple[Nest, Nest]:
        """Steps streams.

        Args:
          params: of the policy; they are put onto the device where they are another object than
            before.
          observation: arrays [n, ...].
          first: bool [n], true where an episode begins.
          rows: int32 [n], the streams to step, none of them twice. Numbers from N on are of no
            stream, and pad a batch. None: all N streams in order.

        Returns:
          Actions and extras as numpy arrays [n, ...].
        """
        if params is not self._given:
            self._given, self._params = params, jax.device_put(params, self._device)
        step, count, unpack = self._runs.get(len(first)) or self._compile(observation, first)
        if rows is not None:
            parts = step(self._params, observation, *self._state, first, rows)
        elif self._forgets:
            parts = step(self._params, observation, *self._state, first)
        else:
            parts = step(self._params, observation, *self._state)
        self._state = parts[count:]
        return unpack(fetch(parts[:count]))

    def _compile(self, observation: Nest, first: np.ndarray) -> _Run:
        step, chosen = self._traced(observation, first)
        held = len(self._state)

        def flat(params, observation, *parts):  # jax looks into nests for a microsecond each.
            chosen, state = step(params, observation, parts[:held], *parts[held:])
            return (*chosen, *state)

        donated = tuple(range(2, 2 + held))
        run = jax.jit(flat, donate_argnums=donated), chosen.count, chosen.unpack_host
        return self._runs.setdefault(len(first), run)

    def _traced(self, observation: Nest, first: np.ndarray) -> tuple[Callable[..., Any], Packing]:
        """Returns `(params, observation, state, first, rows) -> (chosen, state)`, both packed, to
        be compiled, and the packing of actions and extras."""
        step = policies.batch(self._policy)
        like = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((len(first), *leaf.shape), leaf.dtype), self._row
        )
        action, extras, _ = jax.eval_shape(step, self._params, observation, like, first)
        chosen, packing = Packing((action, extras)), self._packing

        def packed(params, observation, state, first=np.zeros_like(first), rows=None):
            picked = state if rows is None else [part.at[rows].get(mode="clip") for part in state]
            action, extras, after = step(params, observation, packing.unpack(picked), first)
            after = packing.pack(after)
            return chosen.pack((action, extras)), (
                after if rows is None else _write(state, rows, after)
            )

        return packed, chosen

    def grow(self, num_streams: int) -> None:
        """Makes room for more streams; those that there are stay."""
        more = num_streams - self.num_streams
        state = [
            np.concatenate([part, np.zeros((more, *part.shape[1:]), part.dtype)])
            for part in fetch(self._state)
        ]
        self.num_streams = num_streams
        self._put(state)

    def save(self) -> Nest:
        """Returns the state as numpy arrays [N, ...], PRNG keys as their words."""
        # Copies: what is looked at here is donated by the next call.
        return self._packing.unpack_host([np.array(part) for part in self._state])

    def restore(self, state: Nest) -> None:
        """Takes back what `save` gave.

        Raises:
          ValueError: if it is the state of another policy.
        """
        self._put(self._packing.pack(from_host(state, self._like)))

    def _put(self, state: Sequence[Any]) -> None:
        """Takes over a packed state."""
        self._state = jax.device_put(list(state), self._device)


def _write(state: Parts, rows: jax.Array, values: Parts) -> Parts:
    """Puts rows [n, ...] into a packed state [N, ...]; those of no stream are dropped."""
    pairs = zip(state, values, strict=True)
    return [part.at[rows].set(value, mode="drop") for part, value in pairs]
