"""Copies of nests that stay as they are while the run goes on, made at the least cost of its time.

Memory: arrays on the host and of CPU devices are copied into memory that is kept for the next copy,
as new memory costs more time than copying: once the bytes of the nest on the host, from the first
copy on. Arrays of accelerators are copied on their device where it has room, for as long as they
are being written, and fetched one by one; where it has none they are fetched at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Nest = Any

_BLOCK = 1 << 18
"""Numbers looked at together: they stay in the cache of a core."""
_ROOM = 1.1
"""So many times the bytes of a copy must be free on a device."""


@dataclasses.dataclass(frozen=True)
class Shards:
    """The part of a spread array that this process holds, each shard once."""

    shape: tuple[int, ...]
    """Of the whole array."""
    dtype: Any
    chunk: tuple[int, ...]
    """Shape of a shard."""
    shards: tuple[tuple[tuple[slice, ...], bool, Any], ...]
    """Place in the array, True if this process is the one that writes it, and the values."""
    sharding: Any

    @property
    def written(self) -> Iterator[tuple[tuple[slice, ...], Any]]:
        """Place and values of the shards that this process writes."""
        return ((place, data) for place, writes, data in self.shards if writes and data.size)

    @classmethod
    def of(cls, array: jax.Array) -> Shards:
        """The shards of an array, which are not copied."""
        held: dict[tuple[int, ...], tuple[tuple[slice, ...], bool, Any]] = {}
        for shard in sorted(array.addressable_shards, key=lambda one: one.replica_id):
            place = tuple(one.start or 0 for one in shard.index)
            held.setdefault(place, (shard.index, shard.replica_id == 0, shard.data))
        chunk = array.sharding.shard_shape(array.shape)
        return cls(array.shape, array.dtype, chunk, tuple(held.values()), array.sharding)


def is_spread(leaf: Any) -> bool:
    """True of an array, its shards, or a shape with a sharding, that lies on several devices, or in
    one of several processes on a device of a mesh.
    """
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        return False
    of_mesh = isinstance(sharding, jax.sharding.NamedSharding) and jax.process_count() > 1
    return of_mesh or len(sharding.device_set) > 1


def fetch(array: Any) -> np.ndarray:
    """The values of an array on the host, which a jax array does not keep besides.

    On CPU they are seen where they lie: let go of them before the array is donated.
    """
    if isinstance(array, jax.Array) and len(array.sharding.device_set) == 1:
        array = jax.make_array_from_single_device_arrays(array.shape, array.sharding, [array])
    return np.asarray(array)


def _is_host(device: jax.Device) -> bool:
    """True if the memory of a device is that of the host."""
    return device.platform == "cpu"


class Freezer:
    """Copies one nest after another; a copy is good until the next is made."""

    def __init__(self) -> None:
        self._memory: dict[int, np.ndarray] = {}

    def freeze(self, nest: Nest) -> Nest:
        """A copy of a nest: numpy arrays, jax arrays of accelerators, and `Shards`.

        Args:
          nest: arrays, numbers and text; PRNG keys too.
        """
        leaves, structure = jax.tree.flatten(nest)
        spread = [Shards.of(leaf) if is_spread(leaf) else leaf for leaf in leaves]
        pieces: list[Any] = []
        for leaf in spread:
            is_shards = isinstance(leaf, Shards)
            pieces += (data for *_, data in leaf.shards) if is_shards else [leaf]
        copies = iter(self._copies(pieces))

        def copied(leaf: Any) -> Any:
            if not isinstance(leaf, Shards):
                return next(copies)
            shards = tuple((place, writes, next(copies)) for place, writes, _ in leaf.shards)
            return dataclasses.replace(leaf, shards=shards)

        return jax.tree.unflatten(structure, [copied(leaf) for leaf in spread])

    def _copies(self, pieces: list[Any]) -> list[Any]:
        copies = list(pieces)
        on_devices: dict[Any, list[int]] = {}
        for number, piece in enumerate(pieces):
            if not isinstance(piece, jax.Array):
                continue
            (device,) = piece.devices()
            if jax.dtypes.issubdtype(piece.dtype, jax.dtypes.prng_key):
                words = jnp.array(jax.random.key_data(piece))
                copies[number] = jax.random.wrap_key_data(words, impl=jax.random.key_impl(piece))
            elif not _is_host(device):
                on_devices.setdefault(device, []).append(number)
        for device, numbers in on_devices.items():
            made = _copied_there(device, [pieces[number] for number in numbers])
            for number, copy in zip(numbers, made or (), strict=bool(made)):
                copies[number] = copy
        for number, piece in enumerate(pieces):
            if copies[number] is piece and isinstance(piece, np.ndarray | jax.Array):
                copies[number] = self._copy(number, fetch(piece))
        return copies

    def _copy(self, number: int, values: np.ndarray) -> np.ndarray:
        memory = self._memory.get(number)
        if memory is None or memory.size < values.nbytes:
            # A replay grows from one copy to the next; what is not written to costs nothing.
            size = values.nbytes if memory is None else max(values.nbytes, 2 * memory.size)
            memory = self._memory[number] = np.empty(size, np.uint8)
        copy = memory[: values.nbytes].view(values.dtype).reshape(values.shape)
        np.copyto(copy, values)
        return copy


@jax.jit
def _copied(arrays: list[jax.Array]) -> list[jax.Array]:
    return [jnp.copy(array) for array in arrays]


def _copied_there(device: jax.Device, arrays: list[jax.Array]) -> list[jax.Array] | None:
    """Copies on an accelerator, made before what is asked of it next; None: it has no room."""
    numbers = device.memory_stats() or {}
    if "bytes_limit" in numbers:
        free = numbers["bytes_limit"] - numbers["bytes_in_use"]
        if free < _ROOM * sum(array.nbytes for array in arrays):
            return None
    try:
        return _copied(arrays)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None


@jax.jit
def _hold_nan(arrays: list[jax.Array]) -> jax.Array:
    return jnp.stack([jnp.isnan(array).any() for array in arrays])


def nan_at(nest: Nest) -> str | None:
    """The path of the first array of a nest that holds NaN; None: none does.

    Accelerators look at what they hold themselves, each in one program, and gather nothing; of a
    spread array this process's shards are looked at, each once. Infinity is let pass: optimizers
    keep it, as the best loss before the first.
    """
    paths: list[str] = []
    on_devices: dict[Any, list[tuple[int, jax.Array]]] = {}
    first: int | None = None
    for path, leaf in jax.tree_util.tree_flatten_with_path(nest)[0]:
        paths.append(jax.tree_util.keystr(path))
        dtype = getattr(leaf, "dtype", None)
        if dtype is None or not jax.dtypes.issubdtype(dtype, np.inexact):
            continue
        if isinstance(leaf, jax.Array) and is_spread(leaf):
            leaf = Shards.of(leaf)
        for piece in [data for *_, data in leaf.shards] if isinstance(leaf, Shards) else [leaf]:
            device = next(iter(piece.devices())) if isinstance(piece, jax.Array) else None
            if device is not None and not _is_host(device):
                on_devices.setdefault(device, []).append((len(paths) - 1, piece))
            elif first is None and _is_nan(fetch(piece)):
                first = len(paths) - 1
    flagged = [(held, _hold_nan([piece for _, piece in held])) for held in on_devices.values()]
    bad = [held[at][0] for held, flags in flagged for at in np.flatnonzero(flags)]
    numbers = bad if first is None else [*bad, first]
    return paths[min(numbers)] if numbers else None


def _is_nan(values: np.ndarray) -> bool:
    """True if one of the values is NaN."""
    flat = values.reshape(-1)
    return any(
        np.isnan(flat[start : start + _BLOCK]).any() for start in range(0, flat.size, _BLOCK)
    )
