"""A mesh: names and sizes of axes. It stands for devices, but planning needs none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np


class Mesh:
    """Named axes with sizes, outermost first.

    Args:
      axes: {"data": 4, "model": 2}.
      devices: the devices in row-major order, as many as the mesh holds; by default the first ones
        of `jax.devices()`, looked up only when the mesh is run on.

    Raises:
      ValueError: for no axes, a bad name, or a size below one.
    """

    def __init__(self, axes: Mapping[str, int], devices: Sequence[Any] | None = None):
        self.axes: dict[str, int] = dict(axes)
        if not self.axes:
            raise ValueError("a mesh needs at least one axis; write e.g. pt.Mesh({'data': 8})")
        for name, size in self.axes.items():
            if not isinstance(name, str) or not name.isidentifier():
                raise ValueError(f"mesh axis name {name!r} is not an identifier; write e.g. 'data'")
            if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
                raise ValueError(
                    f"mesh axis {name!r} has size {size!r}; it must be a positive integer"
                )
        self._devices = None if devices is None else tuple(devices)
        if self._devices is not None and len(self._devices) != self.size:
            raise ValueError(
                f"mesh {self} needs {self.size} devices and was given {len(self._devices)}"
            )

    @property
    def size(self) -> int:
        """The number of devices in it."""
        return math.prod(self.axes.values())

    def devices(self) -> tuple[Any, ...]:
        """The devices it runs on, row-major.

        Raises:
          ValueError: where jax has fewer devices than the mesh holds.
        """
        if self._devices is not None:
            return self._devices
        found = jax.devices()
        if len(found) < self.size:
            raise ValueError(
                f"mesh {self} needs {self.size} devices; jax has {len(found)} "
                f"({found[0].platform}). Use a "
                "smaller mesh, or on CPU set XLA_FLAGS=--xla_force_host_platform_device_count="
                f"{self.size} before jax is imported"
            )
        return tuple(found[: self.size])

    def jax_mesh(self) -> jax.sharding.Mesh:
        """The mesh as jax's, over real devices."""
        shape = tuple(self.axes.values())
        return jax.sharding.Mesh(
            np.array(self.devices(), dtype=object).reshape(shape), tuple(self.axes)
        )

    def on(self, devices: Sequence[Any]) -> Mesh:
        """The mesh on these devices, unless it was made with some already."""
        return self if self._devices is not None else Mesh(self.axes, devices)

    def ordered(self, order: Sequence[int]) -> Mesh:
        """The mesh with its devices in another order: of each place, which one stands there.

        Raises:
          ValueError: where jax has fewer devices than the mesh holds.
        """
        devices = self.devices()
        return Mesh(self.axes, [devices[i] for i in order])

    def in_parts(self, parts: Mapping[str, Mapping[str, int]]) -> Mesh:
        """The same devices, with some axes cut into parts, the outermost part first."""
        axes: dict[str, int] = {}
        for axis, size in self.axes.items():
            axes.update(parts.get(axis, {axis: size}))
        return Mesh(axes, self._devices)

    def check_axis(self, axis: str, who: str) -> None:
        """Raises ValueError, naming `who`, where the mesh has no such axis."""
        if axis not in self.axes:
            raise ValueError(
                f"{who}: mesh {self} has no axis {axis!r}; its axes are {list(self.axes)}"
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and (self.axes, self._devices) == (
            other.axes,
            other._devices,
        )

    def __hash__(self) -> int:
        return hash((tuple(self.axes.items()), self._devices))

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes.items())

    def __repr__(self) -> str:
        return f"Mesh({self.axes})"


def parse_mesh(text: str) -> Mesh:
    """The mesh written "data=4,model=2".

    Raises:
      ValueError: naming the part that does not read.
    """
    axes: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, sign, size = part.partition("=")
        if not sign or not size.strip().isdigit():
            raise ValueError(f"mesh {text!r}: {part!r} is not AXIS=SIZE; write e.g. data=4,model=2")
        if name.strip() in axes:
            raise ValueError(f"mesh {text!r}: axis {name.strip()!r} is given twice")
        axes[name.strip()] = int(size)
    if not axes:
        raise ValueError(f"mesh {text!r} has no axes; write e.g. data=4,model=2")
    return Mesh(axes)
