"""The variable server: numbered versions of the parameters, between a learner and its actors.

A version is one file in a folder of shared memory. The learner writes it once, from one gather of
what may be sharded; the server holds its number and place; readers on the same machine map it into
their memory, so that neither their number nor the size of the parameters is felt by anyone. Readers
that cannot see the folder, on other hosts, are sent the bytes.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pathlib
import pickle
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import ml_dtypes
import numpy as np

Nest = Any
_ALIGN = 64  # What XLA asks of memory that it uses in place.
_HEAD = struct.Struct("<Q")


class Found(NamedTuple):
    """A version that a server has."""

    version: int
    path: str
    content: bytes | None
    """The file's, where it was asked for."""


class Server(Protocol):
    """What a reader asks of a `VariableServer`, near or far."""

    def get(self, newer_than: int, inline: bool) -> tuple[int, str, bytes | None] | None: ...


def write_version(
    folder: pathlib.Path, version: int, variables: Mapping[str, Nest]
) -> pathlib.Path:
    """Writes variables as a file that readers can map.

    Args:
      folder: of shared memory, where there is one.
      version: its number, in the name.
      variables: nests of arrays by name; each array is brought to this host once.

    Returns:
      The file, which is complete when it has its name.
    """
    leaves, structure = jax.tree.flatten(dict(variables))
    arrays = [np.asarray(leaf, order="C") for leaf in jax.device_get(leaves)]
    layout, offset = [], 0
    for array in arrays:
        layout.append((array.dtype.name, array.shape, offset))
        offset += -(-array.nbytes // _ALIGN) * _ALIGN
    head = pickle.dumps((jax.tree.unflatten(structure, range(len(leaves))), layout))
    start = -(-(_HEAD.size + len(head)) // _ALIGN) * _ALIGN
    path = folder / f"version-{version:012d}"
    temporary = folder / f".version-{version:012d}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(_HEAD.pack(len(head)) + head)
        for array, (_, _, at) in zip(arrays, layout, strict=True):
            file.seek(start + at)
            file.write(array.reshape(-1).view(np.uint8).data)
        file.truncate(max(start + offset, file.tell()))
    os.rename(temporary, path)
    return path


def read_version(content: pathlib.Path | bytes) -> dict[str, Nest]:
    """The variables of a file, or of the bytes of one.

    Returns:
      Nests of numpy arrays that cannot be written to. Of a file they are its memory, which lasts
      as long as they do even if the file is removed.

    Raises:
      FileNotFoundError: if the file is gone, or lies on another host.
    """
    buffer: Any = content
    if isinstance(content, pathlib.Path):
        with open(content, "rb") as file:
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    (length,) = _HEAD.unpack_from(buffer)
    places, layout = pickle.loads(buffer[_HEAD.size : _HEAD.size + length])
    start = -(-(_HEAD.size + length) // _ALIGN) * _ALIGN

    def array(index: int) -> np.ndarray:
        name, shape, at = layout[index]
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(buffer, dtype, count, start + at).reshape(shape)

    return jax.tree.map(array, places)


class VariableServer:
    """Holds the newest version. Its methods may be called from several threads.

    It keeps numbers and places only, so a new one is as good once the learner has announced its
    newest version again, which `Publisher` does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: tuple[int, str] | None = None

    def announce(self, version: int, path: str) -> None:
        """Makes a version the newest, unless a newer one is known."""
        with self._lock:
            if self._newest is None or version > self._newest[0]:
                self._newest = (version, path)

    def latest(self) -> int:
        """The number of the newest version; -1 where there is none."""
        newest = self._newest
        return -1 if newest is None else newest[0]

    def get(self, newer_than: int, inline: bool = False) -> tuple[int, str, bytes | None] | None:
        """The newest version, as `Found`; None where none is newer.

        Args:
          newer_than: number of the version that the reader has; -1: none.
          inline: send the bytes too, for a reader that cannot see the file.
        """
        newest = self._newest
        if newest is None or newest[0] <= newer_than:
            return None
        version, path = newest
        return version, path, pathlib.Path(path).read_bytes() if inline else None


class Publisher:
    """Publishes a learner's variables from a thread of its own; the learner never waits.

    Versions are numbered on from the newest in the folder. The file before the newest is kept as
    well: a reader may just have been told of it.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        server: Any,
        *,
        period: float = 0.05,
        failed: tuple[type[Exception], ...] = (OSError,),
    ):
        """Starts the thread.

        Args:
          folder: where versions are written.
          server: a `VariableServer`, near or far.
          period: least seconds between two versions.
          failed: what a call of the server raises when it cannot be reached.
        """
        self._folder, self._server = folder, server
        self._period, self._failed = period, failed
        self._changed = threading.Condition()
        self._offered: Mapping[str, Nest] | None = None
        self._closed = False
        self._files: list[pathlib.Path] = sorted(folder.glob("version-*"))
        self._version = int(self._files[-1].name.split("-")[1]) if self._files else -1
        self.gathers = 0
        """How often variables were brought to the host."""
        self.error: BaseException | None = None
        """Why the thread ended, if it failed."""
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int:
        """The newest that was written."""
        return self._version

    def offer(self, variables: Mapping[str, Nest]) -> None:
        """Has these published, unless others are offered before it comes to that.

        Args:
          variables: arrays that stay as they are.
        """
        with self._changed:
            self._offered = variables
            self._changed.notify()

    def flush(self, timeout: float) -> bool:
        """Waits until all that was offered is written and announced; says whether it was."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self._thread.is_alive():
            if self._offered is None and self._announced():
                return True
            time.sleep(0.01)
        return False

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(5.0)

    def _run(self) -> None:
        try:
            while not self._closed:
                with self._changed:
                    # Wakes up without an offer too, to see whether the server forgot the newest.
                    self._changed.wait_for(lambda: self._offered is not None or self._closed, 1.0)
                    variables = self._offered
                if variables is not None:
                    self._write(variables)
                    with self._changed:
                        if self._offered is variables:
                            self._offered = None
                self._announced()
                time.sleep(self._period)
        except BaseException as error:
            self.error = error
            raise

    def _write(self, variables: Mapping[str, Nest]) -> None:
        self.gathers += 1
        path = write_version(self._folder, self._version + 1, variables)
        self._version += 1
        self._files.append(path)
        while len(self._files) > 2:
            self._files.pop(0).unlink(missing_ok=True)

    def _announced(self) -> bool:
        """Sees to it that the server knows the newest version; says whether it does."""
        if not self._files:
            return False
        try:
            if self._server.latest() < self._version:
                self._server.announce(self._version, str(self._files[-1]))
            return True
        except self._failed:
            return False


class VariableReader:
    """A `VariableSource` that keeps up with a server from a thread of its own.

    Attributes:
      version: number of the version held; -1 before the first.
      fetched: how many versions were fetched.
    """

    def __init__(
        self,
        server: Server,
        *,
        period: float = 0.2,
        failed: tuple[type[Exception], ...] = (OSError,),
        while_waiting: Callable[[], None] = lambda: None,
    ):
        """Starts the thread.

        Args:
          server: a `VariableServer`, near or far.
          period: seconds between two questions.
          failed: what a call of the server raises when it cannot be reached.
          while_waiting: called several times a second while `get_variables` waits for the first
            version; may raise.
        """
        self._server, self._period, self._failed = server, period, failed
        self._while_waiting = while_waiting
        self._variables: dict[str, Nest] | None = None
        self._closed = threading.Event()
        self.version = -1
        self.fetched = 0
        threading.Thread(target=self._run, name="variables", daemon=True).start()

    def get_variables(self, names: Sequence[str] = ("policy",)) -> list[Nest]:
        """The named collections of the version held. Waits for the first.

        Raises:
          KeyError: if the learner publishes none of such a name.
        """
        while self._variables is None:
            self._while_waiting()
            time.sleep(0.02)
        variables = self._variables
        unknown = [name for name in names if name not in variables]
        if unknown:
            raise KeyError(f"No variables named {unknown}; there are {sorted(variables)}.")
        return [variables[name] for name in names]

    def refresh(self) -> bool:
        """Asks once; says whether there was something newer."""
        found = self._server.get(self.version, False)
        if found is None:
            return False
        version, path, _ = found
        try:
            variables = read_version(pathlib.Path(path))
        except FileNotFoundError:
            found = self._server.get(self.version, True)  # Another host, or newer by now.
            if found is None:
                return False
            version, variables = found[0], read_version(found[2] or b"")
        # On the device once, not with every call; on CPU this is the mapped memory itself.
        self._variables = jax.device_put(variables)
        self.version = version  # Last: whoever sees the number finds the variables.
        self.fetched += 1
        return True

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        period = min(self._period, 0.02)
        while not self._closed.wait(period):
            with contextlib.suppress(*self._failed):  # Asked again after the next period.
                self.refresh()
            if self._variables is not None:
                period = self._period


def shared_folder(name: str, num_bytes: int = 1 << 30) -> pathlib.Path:
    """Makes a folder that only this user can read: in shared memory where it holds that much."""
    import tempfile

    memory = pathlib.Path("/dev/shm")
    parent = None
    if memory.is_dir() and os.access(memory, os.W_OK):
        space = os.statvfs(memory)
        parent = memory if space.f_bavail * space.f_frsize >= num_bytes else None
    return pathlib.Path(tempfile.mkdtemp(prefix=f"troupe-{name}-", dir=parent))
