"""The policy of many streams as a program, whose state stays where it is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, SingleDeviceSharding

from ..acting import policies
from ..interfaces import ActorCore
from ..snapshots import from_host
from ..variables.sync import MeshSync
from . import compilation, runtime
from .packing import Packing
from .placement import Partition

if TYPE_CHECKING:
    from .planning import PlannedStep

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
    """The policy of N streams on one device, or over a mesh.

    A call takes observations and gives actions and extras back to the host, and nothing else: the
    state of the policy stays on the device, in its own dtypes, and is donated from call to call.
    Over a mesh no device holds more of the parameters than the tactics leave it.
    """

    def __init__(
        self,
        policy: ActorCore,
        num_streams: int,
        *,
        device: jax.Device | Partition | None = None,
        has_extras: bool = True,
        placed: Callable[[MeshSync], None] = lambda sync: None,
    ):
        """Compiles nothing yet.

        Args:
          policy: written for one observation.
          num_streams: N.
          device: that computes the policy, or the mesh and the tactics of several; None: those over
            which the parameters are spread, or jax's default device.
          has_extras: False: extras are () whatever the policy stores, as nobody asks for them.
          placed: told what brings parameters to the mesh, once that is known; parameters that it
            was given come at no cost.
        """
        self._policy = policy if has_extras else policy._replace(get_extras=lambda *_: ())
        self._forgets = policy.reset is not None
        self._device = device if isinstance(device, jax.Device) else jax.local_devices()[0]
        self._row = jax.eval_shape(lambda: policy.init(jax.random.key(0)))
        self._begun = jax.jit(self._begin, static_argnames="counts")
        self._write = jax.jit(_write, donate_argnums=0)
        self._runs: dict[int, _Run] = {}
        self._given: Nest = object()  # Params are told by their identity; nobody has this one.
        self._params: Nest = None
        self._state: Parts = []
        self._sync: MeshSync | None = None
        """To where parameters are used, once that is known."""
        self._shardings: list[Any] | None = None
        """Of the parts of the state, once a step over a mesh is planned."""
        self.num_streams = num_streams
        self._partition = device if isinstance(device, Partition) else None
        self._infers_partition, self._placed = device is None, placed
        self._packing = self._make_packing()

    def _make_packing(self) -> Packing:
        """The packing of the state, whose leaves stay apart where each has a sharding."""
        small = None if self._partition is None else -1
        return Packing(self._like, by_rows=True, small=small)

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
        self._put(self._write(list(self._state), rows, begun))

    def _begin(self, keys: jax.Array, first_stream: Any, num_actions: Any, counts: bool) -> Parts:
        """The packed state of streams that begin; to be traced."""
        state = policies.begin(self._policy, keys, first_stream)
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
            self._take(params)
        step, count, unpack = self._runs.get(len(first)) or self._compile(observation, first, rows)
        if rows is not None:
            parts = step(self._params, observation, *self._state, first, rows)
        elif self._forgets:
            parts = step(self._params, observation, *self._state, first)
        else:
            parts = step(self._params, observation, *self._state)
        self._state = parts[count:]
        return unpack(fetch(parts[:count]))

    def _take(self, params: Nest) -> None:
        """Puts parameters where they are used."""
        if self._infers_partition:
            self._infers_partition = False
            if (found := layout_of(params)) is not None:
                state = self.save() if self._state else None
                self._partition = found
                self._packing = self._make_packing()
                if state is not None:
                    self.restore(state)
        self._given = params
        if self._partition is None and self._sync is None and is_spread(params):
            here = SingleDeviceSharding(self._device)
            self._sync = MeshSync(jax.tree.map(lambda _: here, params))
            self._placed(self._sync)
        if self._sync is not None:
            self._params = self._sync(params)
        elif self._partition is None:
            self._params = jax.device_put(params, self._device)
        else:
            self._params = params  # Until the step is planned.

    def _compile(
        self, observation: Nest, first: np.ndarray, rows: np.ndarray | None = None
    ) -> _Run:
        if self._partition is not None:
            return self._compile_over_mesh(self._partition, observation, first, rows)
        step, chosen = self._traced(self._params, observation, first)
        held = len(self._state)

        def flat(params, observation, *parts):  # jax looks into nests for a microsecond each.
            chosen, state = step(params, observation, parts[:held], *parts[held:])
            return (*chosen, *state)

        donated = tuple(range(2, 2 + held))
        options = compilation.in_turn(self._device)
        run = jax.jit(flat, donate_argnums=donated, compiler_options=options)
        return self._runs.setdefault(len(first), (run, chosen.count, chosen.unpack_host))

    def _compile_over_mesh(
        self, partition: Partition, observation: Nest, first: np.ndarray, rows: np.ndarray | None
    ) -> _Run:
        flags = [first] if self._forgets else []
        flags = flags if rows is None else [first, rows]
        step, chosen = self._traced(self._params, observation, first)
        arguments = self._params, observation, list(self._state), *flags
        planned = _plan_step(step, partition, arguments).compile()
        counts = [len(jax.tree.leaves(part)) for part in arguments[:3]]
        ends = np.cumsum(counts)
        placed = planned.in_shardings[: ends[0]]
        self._sync = MeshSync(jax.tree.unflatten(jax.tree.structure(self._params), placed))
        self._placed(self._sync)
        self._shardings = list(planned.in_shardings[ends[1] : ends[2]])
        self._take(self._given)
        self._put(self._state)
        waits = partition.mesh.size > 1 and planned.jax_mesh.devices.flat[0].platform == "cpu"

        def flat(params: Nest, observation: Nest, *parts: Any) -> Parts:
            # Collectives of two programs must not meet, and on CPU nothing keeps them apart.
            with runtime.COLLECTIVES:
                leaves = jax.tree.leaves((params, observation))
                found = planned.jitted(*leaves, *parts)
                return jax.block_until_ready(found) if waits else found

        return self._runs.setdefault(len(first), (flat, chosen.count, chosen.unpack_host))

    def plan(self, params: Nest, observation: Nest, devices: runtime.Devices) -> PlannedStep:
        """Plans the step of all streams over the mesh; touches no device.

        Args:
          params: shapes of the policy's.
          observation: shapes [N, ...].
          devices: those at hand, as of `planning.plan_step`.

        Raises:
          ValueError: as of `planning.plan_step`.
        """
        assert self._partition is not None
        first = np.zeros(self.num_streams, bool)
        step, _ = self._traced(params, observation, first)
        state = list(jax.eval_shape(self._packing.pack, self._like))
        flags = [first] if self._forgets else []
        return _plan_step(step, self._partition, (params, observation, state, *flags), devices)

    def _traced(
        self, params: Nest, observation: Nest, first: np.ndarray
    ) -> tuple[Callable[..., Any], Packing]:
        """Returns `(params, observation, state, first, rows) -> (chosen, state)`, both packed, to
        be compiled, and the packing of actions and extras."""
        step = policies.batch(self._policy)
        like = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((len(first), *leaf.shape), leaf.dtype), self._row
        )
        action, extras, _ = jax.eval_shape(step, params, observation, like, first)
        small = None if self._partition is None else -1
        chosen, packing = Packing((action, extras), small=small), self._packing

        nowhere = np.zeros_like(first)

        def packed(params, observation, state, first=nowhere, rows=None):
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
        self.num_streams, self._shardings = num_streams, None
        self._sync = None
        self._runs.clear()
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
        at = self._device if self._shardings is None else self._shardings
        self._state = jax.device_put(list(state), at)


def _write(state: Parts, rows: jax.Array, values: Parts) -> Parts:
    """Puts rows [n, ...] into a packed state [N, ...]; those of no stream are dropped."""
    pairs = zip(state, values, strict=True)
    return [part.at[rows].set(value, mode="drop") for part, value in pairs]


def is_spread(params: Nest) -> bool:
    """True if an array of a nest lies on several devices."""
    leaves = (leaf for leaf in jax.tree.leaves(params) if isinstance(leaf, jax.Array))
    return any(len(leaf.sharding.device_set) > 1 for leaf in leaves)


def layout_of(params: Nest) -> Partition | None:
    """Returns the partition that leaves parameters as they lie; None if they are on one device."""
    spread = {
        path: leaf.sharding
        for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]
        if isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1
    }
    meshes = [one.mesh for one in spread.values() if isinstance(one, NamedSharding)]
    if not meshes:
        return None
    from ... import partitioning  # Only who has a mesh pays for it.
    from ...partitioning.ir.trace import path_text

    dims: dict[str, dict[str, int]] = {axis: {} for axis in meshes[0].axis_names}
    for path, sharding in spread.items():
        for dim, names in enumerate(sharding.spec if isinstance(sharding, NamedSharding) else ()):
            for axis in (names,) if isinstance(names, str) else names or ():
                dims[axis][path_text(("params",), path)] = dim
    mesh = partitioning.Mesh(dict(meshes[0].shape), list(meshes[0].devices.flat))
    tactics = [
        partitioning.Manual(f"parameters over {axis}", of_axis, axis)
        for axis, of_axis in dims.items()
        if of_axis
    ]
    return Partition(mesh, tactics)


def _plan_step(
    step: Callable[..., Any],
    partition: Partition,
    arguments: tuple[Nest, ...],
    devices: runtime.Devices | None = None,
) -> PlannedStep:
    from . import planning  # Only who has a mesh pays for it.

    shapes = jax.tree.map(_shape, arguments)
    return planning.plan_step(step, partition, shapes, devices, weights=("params",))


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    """The form of an argument, as a jitted function takes it."""
    return jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))
