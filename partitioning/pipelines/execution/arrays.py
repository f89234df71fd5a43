"""The arrays of a device while a pipelined step runs: its own, and those that all devices have."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ...ir.program import Value
from .flat import Flat, FlatLayout

#: Flat arrays, with what lies in them on each device.
Store = tuple[Sequence[FlatLayout], Flat]


class StageArrays:
    """Arrays of a device; every device has the same shared ones, and packed ones of its own.

    Args:
      place: the number of the device along the axis, traced.
      shared: the arrays that all devices have.
      stores: packed arrays.
      names: other names of values.
    """

    def __init__(
        self,
        place: Any,
        shared: Mapping[Value, Any],
        stores: Iterable[Store] = (),
        names: Mapping[Value, Value] | None = None,
    ):
        self.place, self.shared = place, dict(shared)
        self._stores = tuple(stores)
        self._names = dict(names or {})

    def with_shared(self, more: Mapping[Value, Any]) -> StageArrays:
        """The same, and more that all devices have."""
        return StageArrays(self.place, {**self.shared, **more}, self._stores, self._names)

    def with_store(self, layouts: Sequence[FlatLayout], flat: Flat) -> StageArrays:
        """The same, and more that devices have of their own."""
        return StageArrays(self.place, self.shared, (*self._stores, (layouts, flat)), self._names)

    def with_names(self, names: Mapping[Value, Value]) -> StageArrays:
        """The same, with further names: of each new one the value that there is."""
        shared, others = {}, {}
        for new, value in names.items():
            if value.data is not None or value in self.shared:
                shared[new] = jnp.asarray(self.read(0, value))
            else:
                others[new] = self._names.get(value, value)
        return StageArrays(
            self.place, {**self.shared, **shared}, self._stores, {**self._names, **others}
        )

    def values(self, here: int) -> set[Value]:
        """The values that a device has."""
        own = {v for layouts, _ in self._stores for v in layouts[here].place}
        return {*self.shared, *own, *(new for new, v in self._names.items() if v in own)}

    def read(self, here: int, value: Value) -> Any:
        """An array on a device that has it."""
        if value.data is not None:
            return value.data
        if value in self.shared:
            return self.shared[value]
        value = self._names.get(value, value)
        layouts, flat = next(s for s in self._stores if value in s[0][here].place)
        return layouts[here].read(flat, value)

    def pack(
        self, layouts: Sequence[FlatLayout], sizes: Mapping[str, int], source: Mapping[Value, Value]
    ) -> Flat:
        """Packs, on each device, what its layout names."""

        def packed(here: int) -> Flat:
            arrays = {v: jnp.asarray(self.read(here, source[v])) for v in layouts[here].values}
            return layouts[here].pack(arrays, sizes)

        return self._by_device(packed, len(layouts))

    def everywhere(self, value: Value, devices: int, axis: str) -> Any:
        """An array on all devices; sent by the one that has it, if it is one."""
        if value.data is not None or value in self.shared:
            return jnp.asarray(self.read(0, value))

        def own(here: int) -> Any:
            if value not in self.values(here):
                return jnp.zeros(value.shape, summable(value.dtype))
            return self.read(here, value).astype(summable(value.dtype))

        return lax.psum(self._by_device(own, devices), axis).astype(value.dtype)

    def _by_device(self, of: Callable[[int], Any], devices: int) -> Any:
        return lax.switch(self.place, [functools.partial(of, here) for here in range(devices)])


def summable(dtype: Any) -> Any:
    """The dtype that arrays of a dtype are sent as, in a sum of one array and of zeros."""
    return jnp.int32 if jnp.dtype(dtype) == jnp.dtype(bool) else dtype
