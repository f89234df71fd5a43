"""Specs as nests that a file can hold (see `npz`), and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from dm_env import specs

from ...environments.specs import StackedArray

Nest = Any


def encode(spec: Nest) -> Nest:
    """A nest of specs as dicts, lists, text and arrays."""
    if isinstance(spec, dict):
        return {"dict": {name: encode(part) for name, part in spec.items()}}
    if isinstance(spec, tuple):
        return {"tuple": [encode(part) for part in spec]}
    found: dict[str, Any] = {
        "shape": list(spec.shape),
        "dtype": np.dtype(spec.dtype).name,
        "name": spec.name,
    }
    if isinstance(spec, specs.DiscreteArray):
        return {**found, "num_values": int(spec.num_values)}
    if isinstance(spec, specs.BoundedArray):
        found |= {"minimum": np.asarray(spec.minimum), "maximum": np.asarray(spec.maximum)}
    if isinstance(spec, StackedArray):
        found |= {"stack": spec.stack, "axis": spec.axis}
    return found


def decode(found: Nest) -> Nest:
    """The inverse of `encode`.

    Raises:
      KeyError, TypeError, ValueError: if it is none of its.
    """
    if "dict" in found:
        return {name: decode(part) for name, part in found["dict"].items()}
    if "tuple" in found:
        return tuple(decode(part) for part in found["tuple"])
    shape, dtype, name = tuple(found["shape"]), np.dtype(found["dtype"]), found["name"]
    if "num_values" in found:
        return specs.DiscreteArray(found["num_values"], dtype, name)
    if "minimum" not in found:
        return specs.Array(shape, dtype, name)
    bounds = found["minimum"], found["maximum"]
    if "stack" in found:
        return StackedArray(shape, dtype, *bounds, found["stack"], found["axis"], name)
    return specs.BoundedArray(shape, dtype, *bounds, name)
