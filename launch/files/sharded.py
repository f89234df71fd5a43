"""Nests of arrays that no process holds whole, as files: one zarr array each, one chunk a shard.

    learner/
        structure.json     the nest, see `npz`
        00000/zarr.json    an array's shape, dtype and chunks
        00000/c/0/1        the values of a shard

Each process writes the shards that it holds, of those that several hold the first one, and reads
the slices that it needs: the devices that read need not be those that wrote. What is on the host at
a time is one shard when writing, and the shards of one array when reading.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from typing import Any

import jax
import numpy as np

from .. import extras
from . import npz
from .frozen import Shards, fetch, is_spread

Nest = Any

_STRUCTURE = "structure.json"
_WAITING_BYTES = 64 << 20
"""Shards are handed to the library until so many bytes wait to be written."""


def require() -> Any:
    """The library for sharded arrays.

    Raises:
      RequestError: if it is not installed.
    """
    return extras.require("tensorstore", "sharded", "saving a state that is spread over devices")


def prepare(folder: pathlib.Path, nest: Nest) -> None:
    """Makes the files that say what the shards are; one process does.

    Args:
      folder: does not exist yet.
      nest: as `npz.write` takes it, its arrays spread or not.
    """
    folder.mkdir()
    arrays: list[Any] = []
    structure = npz.encode(nest, _collect(arrays))
    for index, array in enumerate(arrays):
        _open(folder, index, array, create=True)
    with open(folder / _STRUCTURE, "w") as file:
        json.dump(structure, file, separators=(",", ":"))
        file.flush()
        os.fsync(file.fileno())


def write(folder: pathlib.Path, nest: Nest) -> dict[str, dict[str, Any]]:
    """Writes the shards that this process holds into a folder that was prepared.

    Returns:
      Bytes and SHA-256 of their files, by path in the folder.
    """
    arrays: list[Any] = []
    npz.encode(nest, _collect(arrays))
    sums: dict[str, dict[str, Any]] = {}
    waiting: list[Any] = []
    waiting_bytes = 0
    for index, array in enumerate(arrays):
        store = None
        chunk = _chunk(array)
        for at, values in _held(array):
            data = np.asarray(fetch(values), order="C")
            store = store or _open(folder, index, array)
            places = (str((one.start or 0) // size) for one, size in zip(at, chunk, strict=True))
            # The array itself is written, so that it must outlive the writing.
            future = store[at].write(data, can_reference_source_data_indefinitely=True)
            # Meanwhile: a file holds the values as they are here, and nothing else.
            digest = hashlib.sha256(data.reshape(-1).view(np.uint8).data).hexdigest()
            sums["/".join([f"{index:05}", "c", *places])] = {"bytes": data.nbytes, "sha256": digest}
            waiting.append((future, data))
            waiting_bytes += data.nbytes
            if waiting_bytes > _WAITING_BYTES:
                waiting_bytes = _finish(waiting)
    _finish(waiting)
    return sums


def read(folder: pathlib.Path, like: Nest = None) -> Nest:
    """Reads a nest, or what this process's devices hold of it.

    Args:
      folder: as `prepare` and `write` left it.
      like: a nest of the same structure, see `npz.read`. Where its leaves lie on several devices,
        arrays are made that lie there likewise, and only what this process holds of them is read.

    Raises:
      NestError: if it is damaged, or its structure, shapes or dtypes are not those of `like`.
    """
    library = require()

    def array(index: int, like: Any, path: str) -> Any:
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/{index:05}"}}
        store = library.open(spec, open=True, read=True).result()
        if not is_spread(like):
            return store.read().result()
        npz.check_like(store.shape, store.dtype.numpy_dtype, like, path)
        return jax.make_array_from_callback(
            store.shape, like.sharding, lambda at: store[at].read().result(), dtype=like.dtype
        )

    try:
        structure = json.loads((folder / _STRUCTURE).read_text())
        return npz.decode(structure, array, like)
    except npz.NestError:
        raise
    except (OSError, ValueError) as error:
        raise npz.NestError(f"damaged: {error}") from error


def _collect(arrays: list[Any]) -> npz.Keep:
    def keep(array: Any, path: str) -> dict[str, Any]:
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
            raise npz.NestError(f"at {path}: cannot store an array of {array.dtype} in shards.")
        arrays.append(array)
        return {"array": len(arrays) - 1}

    return keep


def _chunk(array: Any) -> tuple[int, ...]:
    """The shape of a shard."""
    chunk = array.shape
    if isinstance(array, Shards):
        chunk = array.chunk
    elif isinstance(array, jax.Array):
        chunk = array.sharding.shard_shape(array.shape)
    return tuple(max(1, size) for size in chunk)


def _open(folder: pathlib.Path, index: int, array: Any, create: bool = False) -> Any:
    grid = {"name": "regular", "configuration": {"chunk_shape": _chunk(array)}}
    return (
        require()
        .open(
            {
                "driver": "zarr3",
                "kvstore": {"driver": "file", "path": f"{folder}/{index:05}"},
                "metadata": {
                    "shape": array.shape,
                    "chunk_grid": grid,
                    "data_type": np.dtype(array.dtype).name,
                    # No sums in them: those of the manifest are of the same bytes.
                    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                },
                "store_data_equal_to_fill_value": True,
            },
            open=True,
            create=create,
        )
        .result()
    )


def _held(array: Any) -> Any:
    """The shards of an array that this process writes: (slices, values)."""
    if isinstance(array, jax.Array):
        array = Shards.of(array)
    if isinstance(array, Shards):
        yield from array.written
    elif jax.process_index() == 0 and array.size:
        yield (slice(None),) * array.ndim, array


def _finish(waiting: list[Any]) -> int:
    for future, _ in waiting:
        future.result()
    waiting.clear()
    return 0
