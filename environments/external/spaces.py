"""Spaces as simulators describe them, as Gymnasium's, and their values as bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from ..errors import UnsupportedSpaceError
from .client.messages import ProtocolError
from .client.spaces import CODES, array_of, parts_of


class Codec:
    """A space, and what its values are as bytes.

    Attributes:
      space: of Gymnasium's.
    """

    def __init__(self, described: Any, who: str) -> None:
        """Reads the description of a space.

        Args:
          described: as it was sent.
          who: what errors call the simulator.

        Raises:
          UnsupportedSpaceError: if it is none.
        """
        self._described = described
        try:
            self.space = _space(described)
            self._bytes = len(self.pack(self.space.sample()))
        except Exception as error:  # What is no description fails in any way.
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UnsupportedSpaceError(
                f"{who} describes a space as {str(described)[:80]}: {reason}"
            ) from error

    def pack(self, value: Any) -> bytes:
        """Returns a value of the space as bytes."""
        return b"".join(_pack(self._described, value))

    def unpack(self, content: bytes) -> Any:
        """Returns the value of some bytes, arrays as numpy's, which may be kept.

        Raises:
          ProtocolError: if there are more or fewer than a value has.
        """
        if len(content) != self._bytes:
            raise ProtocolError(f"an observation has {len(content)} bytes, not {self._bytes}")
        return _unpack(self._described, memoryview(content), 0)[0]


def _space(described: Any) -> spaces.Space:
    kind = described["type"]
    if kind == "Dict":
        return spaces.Dict({name: _space(part) for name, part in parts_of(described)})
    if kind == "Tuple":
        return spaces.Tuple([_space(part) for _, part in parts_of(described)])
    if kind == "Discrete":
        return spaces.Discrete(described["n"], start=described.get("start", 0))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(described["nvec"])
    if kind != "Box" or described["dtype"] not in CODES:
        raise ValueError("there is no such space")
    dtype, shape = np.dtype(described["dtype"]), tuple(described["shape"])
    least, most = (-np.inf, np.inf) if dtype.kind == "f" else _range(dtype)
    low = _bound(described.get("low"), least, shape, dtype)
    return spaces.Box(low, _bound(described.get("high"), most, shape, dtype), dtype=dtype.type)


def _range(dtype: np.dtype) -> tuple[int, int]:
    """The least and the greatest of an integer type, or of truth values."""
    if dtype.kind == "b":
        return 0, 1
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _bound(given: Any, without: float, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Bounds of every number; null stands for `without`."""
    numbers = [without if one is None else one for one in np.ravel(np.array(given, object))]
    flat = np.array(numbers, dtype)
    return np.broadcast_to(flat, shape).copy() if flat.size == 1 else flat.reshape(shape)


def _wire(described: Any) -> tuple[np.dtype, tuple[int, ...]]:
    dtype, shape = array_of(described)
    return np.dtype(dtype).newbyteorder("<"), shape


def _pack(described: Any, value: Any) -> list[bytes]:
    if "spaces" in described:
        parts = (_pack(part, value[key]) for key, part in parts_of(described))
        return [content for part in parts for content in part]
    dtype, _ = _wire(described)
    return [np.asarray(value).astype(dtype).tobytes()]


def _unpack(described: Any, content: memoryview, start: int) -> tuple[Any, int]:
    if "spaces" in described:
        values = {}
        for key, part in parts_of(described):
            values[key], start = _unpack(part, content, start)
        return (values if described["type"] == "Dict" else tuple(values.values())), start
    dtype, shape = _wire(described)
    count = int(np.prod(shape))
    array = np.frombuffer(content, dtype, count, start).astype(dtype.newbyteorder("="))
    end = start + count * dtype.itemsize
    return (array.reshape(shape) if shape else array[0]), end
