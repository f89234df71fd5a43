"""Nests of arrays that no process holds whole, as files: one zarr array each, one chunk a shard.

    learner/
        structure.json     the nest, see `npz`
        00000/zarr.json    an array's shape, dtype and chunks
        00000/c/0/1        a shard, with a checksum

Each process writes the shards that it holds, of those that several hold the first one, and reads
the slices that it needs: the devices that read need not be those that wrote. What is on the host at
a time is one shard when writing, and the shards of one array when reading.
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import jax
import numpy as np

from .. import extras
from . import npz

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


def is_spread(leaf: Any) -> bool:
    """Whether an array, or a shape with a sharding, lies on several devices."""
    sharding = getattr(leaf, "sharding", None)
    return sharding is not None and len(sharding.device_set) > 1


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


def write(folder: pathlib.Path, nest: Nest) -> list[pathlib.Path]:
    """Writes the shards that this process holds into a folder that was prepared.

    Returns:
      Their files.
    """
    arrays: list[Any] = []
    npz.encode(nest, _collect(arrays))
    files: list[pathlib.Path] = []
    waiting: list[Any] = []
    waiting_bytes = 0
    for index, array in enumerate(arrays):
        store = None
        chunk = _chunk(array)
        for at, data in _held(array):
            store = store or _open(folder, index, array)
            places = (str((one.start or 0) // size) for one, size in zip(at, chunk, strict=True))
            files.append(folder.joinpath(f"{index:05}", "c", *places))
            # The array itself is written, so that it must outlive the writing.
            future = store[at].write(data, can_reference_source_data_indefinitely=True)
            waiting.append((future, data))
            waiting_bytes += data.nbytes
            if waiting_bytes > _WAITING_BYTES:
                waiting_bytes = _finish(waiting)
    _finish(waiting)
    return files


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
            store.shape, like.sharding, lambda at: store[at].read().result()
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
    if isinstance(array, jax.Array):
        return tuple(max(1, size) for size in array.sharding.shard_shape(array.shape))
    return tuple(max(1, size) for size in array.shape)


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
                    "codecs": [
                        {"name": "bytes", "configuration": {"endian": "little"}},
                        {"name": "crc32c"},
                    ],
                },
                "store_data_equal_to_fill_value": True,
            },
            open=True,
            create=create,
        )
        .result()
    )


def _held(array: Any) -> Any:
    """The shards of an array that this process writes: (slices, numpy array)."""
    if not isinstance(array, jax.Array):
        if jax.process_index() == 0 and array.size:
            yield (slice(None),) * array.ndim, np.asarray(array)
        return
    for shard in array.addressable_shards:
        if shard.replica_id == 0 and shard.data.size:
            # An array of its own: what is copied to the host would stay with the shard.
            part = shard.data
            own = jax.make_array_from_single_device_arrays(part.shape, part.sharding, [part])
            yield shard.index, np.asarray(own)


def _finish(waiting: list[Any]) -> int:
    for future, _ in waiting:
        future.result()
    waiting.clear()
    return 0
