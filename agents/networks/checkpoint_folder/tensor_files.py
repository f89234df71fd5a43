"""Files of tensors in the format of safetensors: a header in JSON, then bytes.

The library itself gives NumPy no bfloat16; the format is small, see
https://huggingface.co/docs/safetensors#format.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

DTYPES: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}


class TensorShape(NamedTuple):
    """The shape and dtype of a tensor of a file."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def open_tensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    """The tensors of a file by name, mapped and not read.

    Raises:
      ValueError: where the file is cut short or no such file, or a dtype is none of `DTYPES`.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 + length:
            raise ValueError(f"{path} has {size} bytes and is cut short, or is no safetensors")
        try:
            header = json.loads(file.read(length))
        except ValueError:
            raise ValueError(f"{path} is no file of safetensors: its header is no JSON") from None
    header.pop("__metadata__", None)
    begin = 8 + length
    end = begin + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size < end:
        raise ValueError(f"{path} has {size} bytes of {end}: it is cut short; copy it anew")
    return {name: _map(path, name, entry, begin) for name, entry in header.items()}


def _map(path: pathlib.Path, name: str, entry: dict[str, Any], begin: int) -> np.ndarray:
    if entry["dtype"] not in DTYPES:
        raise ValueError(
            f"{path}: {name} is of {entry['dtype']}; what can be read is {', '.join(DTYPES)}"
        )
    dtype, shape = np.dtype(DTYPES[entry["dtype"]]), tuple(entry["shape"])
    # A scalar type of its own, such as bfloat16, cannot be mapped: bytes can.
    offset, stop = entry["data_offsets"]
    data = np.memmap(path, np.uint8, "r", begin + offset, (stop - offset,))
    return data.view(dtype).reshape(shape)


def write_tensors(
    path: pathlib.Path,
    tensors: Mapping[str, TensorShape],
    get: Callable[[str], np.ndarray],
) -> None:
    """Writes a file whose tensors are asked for one after another, and held one at a time.

    The file has its name only once it is whole.
    """
    names_of = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": names_of[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, begin + tensor.nbytes],
        }
        begin += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    unfinished = path.with_name(f"{path.name}.unfinished")
    with unfinished.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in tensors:
            file.write(np.ascontiguousarray(get(name)).view(np.uint8).data)
    os.replace(unfinished, path)
