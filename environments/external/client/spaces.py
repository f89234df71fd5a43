"""Spaces of observations and actions as they are sent, and values of them as bytes."""

from __future__ import annotations

import array
import sys
from collections.abc import Iterator
from typing import Any

from .messages import ProtocolError

CODES = {
    "bool": "B", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i",
    "uint32": "I", "int64": "q", "uint64": "Q", "float32": "f", "float64": "d",
}  # fmt: skip
"""Type codes of `array.array`, by dtype."""
Space = Any
"""A dict, as it is sent."""


def box(shape: Any, low: Any = None, high: Any = None, dtype: str = "float32") -> Space:
    """Returns the space of arrays; bounds are a number for all, a flat list, or None for none."""
    return {"type": "Box", "shape": list(shape), "dtype": dtype, "low": low, "high": high}


def discrete(n: int, start: int = 0) -> Space:
    """Returns the space of the integers from `start` to `start + n - 1`."""
    return {"type": "Discrete", "n": n, "start": start}


def multi_discrete(nvec: Any) -> Space:
    """Returns the space of lists of integers, each from 0 to its number less 1."""
    return {"type": "MultiDiscrete", "nvec": list(nvec)}


def nest(spaces: Any) -> Space:
    """Returns the space of a dict of spaces, by name, or of a list or tuple of them."""
    if isinstance(spaces, dict):
        return {"type": "Dict", "spaces": dict(spaces)}
    return {"type": "Tuple", "spaces": list(spaces)}


def parts_of(space: Space) -> list[tuple[Any, Space]]:
    """Returns the spaces within a nest, by key, in the order of their bytes."""
    inner = space["spaces"]
    return sorted(inner.items()) if space["type"] == "Dict" else list(enumerate(inner))


def array_of(space: Space) -> tuple[str, tuple[int, ...]]:
    """Returns the dtype and the shape of what is no nest.

    Raises:
      ProtocolError: if there is no such space.
    """
    kind = space["type"]
    if kind == "Box":
        return space["dtype"], tuple(space["shape"])
    if kind in ("Discrete", "MultiDiscrete"):
        return "int64", (() if kind == "Discrete" else (len(space["nvec"]),))
    raise ProtocolError(f"there is no space of type {kind!r}")


def pack(space: Space, value: Any, name: str = "the value") -> bytes:
    """Returns an observation or an action as bytes.

    Raises:
      ValueError: if it does not fit the space.
    """
    if "spaces" in space:
        return b"".join(pack(part, value[key], str(key)) for key, part in parts_of(space))
    dtype, shape = array_of(space)
    if hasattr(value, "astype"):  # An array of numpy's, or of what is like it.
        if tuple(value.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(value.shape)!r}, not {shape!r}")
        found: bytes = value.astype(dtype).tobytes()
        return found
    numbers = list(flat(value))
    if len(numbers) != _size(shape):
        raise ValueError(f"{name} has {len(numbers)} numbers, not {_size(shape)}")
    if not dtype.startswith("float"):
        numbers = [int(number) for number in numbers]
    return _ordered(array.array(CODES[dtype], numbers)).tobytes()


def unpack(space: Space, content: bytes) -> Any:
    """Returns the observation or the action of some bytes, arrays as nested lists.

    Raises:
      ProtocolError: if there are more or fewer bytes than the space has.
    """
    found, end = _unpack(space, content, 0)
    if end != len(content):
        raise ProtocolError(f"{len(content)} bytes came for a value of {end}")
    return found


def _unpack(space: Space, content: bytes, start: int) -> tuple[Any, int]:
    if "spaces" in space:
        values: dict[Any, Any] = {}
        for key, part in parts_of(space):
            values[key], start = _unpack(part, content, start)
        return (values if space["type"] == "Dict" else tuple(values.values())), start
    dtype, shape = array_of(space)
    numbers = array.array(CODES[dtype])
    end = start + _size(shape) * numbers.itemsize
    if end > len(content):
        raise ProtocolError(f"{len(content)} bytes came for a value of {end} or more")
    numbers.frombytes(content[start:end])
    found = _ordered(numbers).tolist()
    return (_shaped(found, shape) if shape else found[0]), end


def flat(value: Any) -> Iterator[Any]:
    """Yields the numbers of nested lists in order."""
    if hasattr(value, "__iter__"):
        for part in value:
            yield from flat(part)
    else:
        yield value


def _size(shape: tuple[int, ...]) -> int:
    found = 1
    for length in shape:
        found *= length
    return found


def _shaped(numbers: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """A flat list as nested ones."""
    if len(shape) == 1:
        return numbers
    each = _size(shape[1:])
    return [_shaped(numbers[i * each : (i + 1) * each], shape[1:]) for i in range(shape[0])]


def _ordered(numbers: Any) -> Any:
    """The numbers with their bytes as they travel, or back."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
