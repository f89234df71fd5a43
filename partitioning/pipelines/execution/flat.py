"""Arrays of different shapes in one flat array for each dtype, so that devices with different
segments run one program.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...ir.program import Value

#: A flat array for each dtype by its name.
Flat = dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class FlatLayout:
    """The places of some values in flat arrays.

    Attributes:
      values: the values in order.
      offsets: for each the dtype's name and its first element.
      sizes: how many elements of each dtype there are.
    """

    values: tuple[Value, ...]
    offsets: tuple[tuple[str, int], ...]
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, values: Iterable[Value], copies: Mapping[Value, int] | None = None) -> FlatLayout:
        """Lays values one behind the other; of some of them several `copies`."""
        values, copies = tuple(values), copies or {}
        sizes: dict[str, int] = {}
        offsets = []
        for value in values:
            name = _storage(value)
            offsets.append((name, sizes.get(name, 0)))
            sizes[name] = sizes.get(name, 0) + _elements(value) * copies.get(value, 1)
        return cls(values, tuple(offsets), sizes)

    @functools.cached_property
    def place(self) -> Mapping[Value, tuple[str, int]]:
        """The dtype's name and the first element of each value."""
        return dict(zip(self.values, self.offsets, strict=True))

    def pack(self, arrays: Mapping[Value, Any], sizes: Mapping[str, int]) -> Flat:
        """The arrays of the values, flat, with zeros behind them up to the given sizes."""
        parts: dict[str, list[Any]] = {name: [] for name in sizes}
        for value, (name, _) in zip(self.values, self.offsets, strict=True):
            parts[name].append(flattened(value, arrays[value]))
        found: Flat = {}
        for name, size in sizes.items():
            rest = size - self.sizes.get(name, 0)
            if rest or not parts[name]:
                parts[name].append(jnp.zeros((rest,), name))
            found[name] = parts[name][0] if len(parts[name]) == 1 else jnp.concatenate(parts[name])
        return found

    def part(self, flat: Flat, value: Value) -> Any:
        """The elements of one value, flat."""
        name, start = self.place[value]
        return flat[name][start : start + _elements(value)]

    def read(self, flat: Flat, value: Value) -> Any:
        """The array of one value."""
        return shaped(value, self.part(flat, value))

    def unpack(self, flat: Flat) -> dict[Value, Any]:
        """The arrays of all values."""
        return {value: self.read(flat, value) for value in self.values}


def largest(packings: Iterable[FlatLayout]) -> dict[str, int]:
    """The sizes of flat arrays that hold any of these."""
    sizes: dict[str, int] = {}
    for packing in packings:
        for name, size in packing.sizes.items():
            sizes[name] = max(sizes.get(name, 0), size)
    return sizes


def nbytes_of(sizes: Mapping[str, int]) -> int:
    """Bytes of flat arrays."""
    return sum(jnp.dtype(name).itemsize * size for name, size in sizes.items())


def zeros(sizes: Mapping[str, int], leading: Sequence[int] = ()) -> Flat:
    """Flat arrays of zeros [*leading, size]."""
    return {name: jnp.zeros((*leading, size), name) for name, size in sizes.items()}


def flattened(value: Value, array: Any) -> Any:
    """An array as a flat one of the dtype it is stored in."""
    if _is_key(value):
        return jax.random.key_data(array).reshape(-1)
    return jnp.reshape(array, (-1,))


def shaped(value: Value, flat: Any) -> Any:
    """The inverse of `flattened`."""
    if _is_key(value):
        implementation = value.dtype._impl
        words = flat.reshape(*value.shape, *implementation.key_shape)
        return jax.random.wrap_key_data(words, impl=implementation.name)
    return jnp.reshape(flat, value.shape)


def _is_key(value: Value) -> bool:
    return bool(jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key))


def _storage(value: Value) -> str:
    return "uint32" if _is_key(value) else str(jnp.dtype(value.dtype).name)


def _elements(value: Value) -> int:
    if _is_key(value):
        words = 1
        for size in value.dtype._impl.key_shape:
            words *= size
        return value.size * words
    return value.size
