"""The board of versions: one file for each, in a folder of shared memory.

The learner writes a version once: arrays that are whole, or of spread ones their blocks as devices
hold them, so that whoever spreads them too reads only what its devices need. Each process of a gang
may write a part of it, the blocks of its own devices. Readers on the same machine map it into their
memory, so that neither their number nor the size of the parameters is felt by anyone; readers that
cannot see the folder, on other hosts, are sent the bytes.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import pathlib
import pickle
import struct
import tempfile
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import ml_dtypes
import numpy as np

from .stored import StoredArray, blocks_of, stored

Nest = Any
_ALIGN = 64  # What XLA asks of memory that it uses in place.
_HEAD = struct.Struct("<Q")
_RESERVED = "reserved"


class Shelf(Protocol):
    """A store of versions until they are read."""

    def newest(self) -> tuple[int, Any]:
        """Returns number and place of the newest version of an earlier life.

        The number is -1 if there is none; the place is None if the version is gone.
        """

    def put(self, version: int, variables: Mapping[str, Nest]) -> Any:
        """Stores a version; returns its place, which readers are told.

        The one before stays as well: a reader may just have been told of it.
        """

    def reserve(self, version: int) -> None:
        """Sees to it that later lives number on from here, whether or not it is put."""


class FileShelf:
    """Files in a folder of shared memory."""

    def __init__(self, folder: pathlib.Path):
        """Takes a folder that exists, with the versions that an earlier life left in it."""
        self._folder = folder
        self._files = sorted(folder.glob("version-*"))

    def newest(self) -> tuple[int, Any]:
        found: tuple[int, Any] = (-1, None)
        if self._files:
            found = int(self._files[-1].name.split("-")[1]), str(self._files[-1])
        with contextlib.suppress(FileNotFoundError):
            reserved = int((self._folder / _RESERVED).read_text())
            found = found if found[0] >= reserved else (reserved, None)
        return found

    def reserve(self, version: int) -> None:
        temporary = self._folder / f".{_RESERVED}"
        temporary.write_text(str(version))
        os.replace(temporary, self._folder / _RESERVED)

    def put(self, version: int, variables: Mapping[str, Nest]) -> Any:
        self._files.append(write_version(self._folder, version, variables))
        while len(self._files) > 2:
            self._files.pop(0).unlink(missing_ok=True)
        return str(self._files[-1])


def version_file(folder: pathlib.Path, version: int) -> pathlib.Path:
    """Returns the file that `write_version` writes a version to."""
    return folder / f"version-{version:012d}"


def write_version(
    folder: pathlib.Path, version: int, variables: Mapping[str, Nest]
) -> pathlib.Path:
    """Writes variables as a file that readers can map.

    Args:
      folder: of shared memory, where there is one.
      version: its number, in the name.
      variables: nests of arrays by name; each block of an array is brought to this host once,
        one after another. Of arrays of several processes the blocks that are this one's.

    Returns:
      The file, which is complete when it has its name.
    """
    leaves, structure = jax.tree.flatten(dict(variables))
    blocks = [blocks_of(leaf, number) for number, leaf in enumerate(leaves)]
    layout, offset = [], 0
    for leaf, of_leaf in zip(leaves, blocks, strict=True):
        places = []
        for place, values in of_leaf:
            places.append(([(one.start, one.stop) for one in place], offset))
            offset += -(-values.nbytes // _ALIGN) * _ALIGN
        layout.append((leaf.dtype.name, leaf.shape, places))
    head = pickle.dumps((jax.tree.unflatten(structure, range(len(leaves))), layout))
    start = -(-(_HEAD.size + len(head)) // _ALIGN) * _ALIGN
    path = version_file(folder, version)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "wb") as file:
        file.write(_HEAD.pack(len(head)) + head)
        for of_leaf, (_, _, places) in zip(blocks, layout, strict=True):
            for (_, values), (_, at) in zip(of_leaf, places, strict=True):
                file.seek(start + at)
                file.write(np.asarray(values, order="C").reshape(-1).view(np.uint8).data)
        file.truncate(max(start + offset, file.tell()))
    os.rename(temporary, path)
    return path


def read_version(content: pathlib.Path | bytes) -> dict[str, Nest]:
    """The variables of a file, or of the bytes of one.

    Returns:
      Nests of numpy arrays that cannot be written to, and of `StoredArray`s of such for arrays
      that were spread: of a part, with its own blocks. Of a file they are its memory, which lasts
      as long as they do even if the file is removed.

    Raises:
      FileNotFoundError: if the file is gone, or lies on another host.
    """
    buffer: Any = content
    if isinstance(content, pathlib.Path):
        with open(content, "rb") as file:
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    (length,) = _HEAD.unpack_from(buffer)
    indices, layout = pickle.loads(buffer[_HEAD.size : _HEAD.size + length])
    start = -(-(_HEAD.size + length) // _ALIGN) * _ALIGN

    def array(index: int) -> np.ndarray | StoredArray:
        name, shape, places = layout[index]
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        blocks = []
        for place, at in places:
            sizes = [stop - start for start, stop in place]
            values = np.frombuffer(buffer, dtype, math.prod(sizes), start + at).reshape(sizes)
            blocks.append((tuple(slice(*ends) for ends in place), values))
        return stored(shape, dtype, blocks)

    return jax.tree.map(array, indices)


def shared_folder(name: str, num_bytes: int = 1 << 30) -> pathlib.Path:
    """Makes a folder that only this user can read: in shared memory where it holds that much."""
    memory = pathlib.Path("/dev/shm")
    parent = None
    if memory.is_dir() and os.access(memory, os.W_OK):
        space = os.statvfs(memory)
        parent = memory if space.f_bavail * space.f_frsize >= num_bytes else None
    return pathlib.Path(tempfile.mkdtemp(prefix=f"troupe-{name}-", dir=parent))
