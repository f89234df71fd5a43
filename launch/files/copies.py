"""Copies of checkpoints at an address: S3, Google Cloud, SFTP or what else fsspec knows.

    ADDRESS/checkpoint-00000007/manifest.json      as in the run's own folder, see `checkpoints`
    ADDRESS/incarnation                                   number of the incarnation that began last

Stores of objects rename nothing, so that the manifest is written last and removed first: without it
there is no copy.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import pathlib
import queue
import re
import secrets
import shutil
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from .. import extras
from ..errors import RequestError, RunError

_MANIFEST = "manifest.json"
_INCARNATION = "incarnation"
_FETCHING = ".writing-fetched-"
_PATIENCE, _SLOWEST = 600.0, 1e6
"""Seconds, and bytes a second besides, after which a copy counts as failed: some kinds of address
never say that they hang."""
_T = TypeVar("_T")


class CopyError(RunError):
    """A file at the address could not be read or written."""


class Copies:
    """The checkpoints of one run, at an address."""

    def __init__(self, address: str):
        """Connects.

        Args:
          address: as fsspec takes it, such as s3://bucket/runs/mine.

        Raises:
          RequestError: if there is no such kind of address, or it wants what is not installed.
        """
        fsspec = extras.require("fsspec", "remote", "checkpoints at an address")
        self._address = without_password(address)
        try:
            self._files, root = fsspec.core.url_to_fs(address)
        except Exception as error:  # Each kind of address raises what its library does.
            raise RequestError(
                f"checkpoints cannot go to {self._address}: {_line(error)}."
            ) from error
        self._root = root.rstrip("/")

    def names(self, prefix: str) -> list[str]:
        """Of the checkpoints that are whole, the oldest first."""

        def names() -> list[str]:
            with contextlib.suppress(FileNotFoundError):
                found = (str(one["name"]).rstrip("/") for one in self._files.ls(self._root, True))
                names = sorted(name.rpartition("/")[2] for name in found)
                return [one for one in names if one.startswith(prefix) and self._is_whole(one)]
            return []

        self._files.invalidate_cache()
        return self._try(names, "read")

    def claim(self, prefix: str) -> None:
        """Looks whether a new run can have the address to itself.

        Raises:
          RequestError: if it holds checkpoints, or cannot be written and read.
        """
        mark, text = f".troupe-{secrets.token_hex(8)}", secrets.token_hex(8)
        try:
            if names := self.names(prefix):
                raise RequestError(
                    f"{self._address} holds checkpoints of another run ({names[-1]}); name another "
                    "address with --checkpoints."
                )
            self.write(mark, text)
            if self.read(mark) != text:
                raise RequestError(f"{self._address} does not keep what is written there.")
            self.erase(mark)
        except CopyError as error:
            raise RequestError(str(error)) from error

    def put(self, folder: pathlib.Path) -> None:
        """Copies a checkpoint that is whole."""

        def put() -> None:
            target = f"{self._root}/{folder.name}"
            files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            for path in sorted(files, key=lambda one: one.name == _MANIFEST):
                place = f"{target}/{path.relative_to(folder).as_posix()}"
                self._files.makedirs(place.rpartition("/")[0], exist_ok=True)
                self._files.put_file(str(path), place)

        self._try(put, "written")

    def get(self, name: str, folder: pathlib.Path) -> None:
        """Copies a checkpoint into a folder, where it is whole or not there."""
        target, temporary = folder / name, folder / f"{_FETCHING}{name}-{os.getpid()}"

        def get() -> None:
            manifest = json.loads(self._files.cat_file(f"{self._root}/{name}/{_MANIFEST}"))
            files = [_MANIFEST]
            for part, found in manifest["parts"].items():
                files.extend(found.get("files", [f"{part}.npz"]))
            for file in files:
                (temporary / file).parent.mkdir(parents=True, exist_ok=True)
                self._files.get_file(f"{self._root}/{name}/{file}", str(temporary / file))

        try:
            self._try(get, "read")
            os.rename(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def remove(self, name: str) -> None:
        """Removes a checkpoint."""

        def remove() -> None:
            self._files.rm_file(f"{self._root}/{name}/{_MANIFEST}")
            self._files.rm(f"{self._root}/{name}", recursive=True)

        self._try(remove, "written")

    @property
    def incarnation(self) -> int:
        """Number of the incarnation that began last; -1: there was none."""
        said = self.read(_INCARNATION)
        return -1 if said is None else int(said)

    @incarnation.setter
    def incarnation(self, number: int) -> None:
        self.write(_INCARNATION, str(number))

    def read(self, name: str) -> str | None:
        """A short file; None: it is not there."""

        def read() -> str | None:
            with contextlib.suppress(FileNotFoundError):
                return self._files.cat_file(f"{self._root}/{name}").decode()
            return None

        self._files.invalidate_cache()
        return self._try(read, "read")

    def write(self, name: str, text: str) -> None:
        """Writes a short file."""

        def write() -> None:
            self._files.makedirs(self._root, exist_ok=True)
            self._files.pipe_file(f"{self._root}/{name}", text.encode())

        self._try(write, "written")

    def erase(self, name: str) -> None:
        """Removes a short file."""
        self._try(lambda: self._files.rm_file(f"{self._root}/{name}"), "written")

    def _is_whole(self, name: str) -> bool:
        return self._files.exists(f"{self._root}/{name}/{_MANIFEST}")

    def _try(self, what: Callable[[], _T], word: str) -> _T:
        try:
            return what()
        except Exception as error:  # Each kind of address raises what its library does.
            raise CopyError(
                f"checkpoints at {self._address} cannot be {word}: {_line(error)}."
            ) from error


class Copier:
    """Copies checkpoints from a thread of its own: whoever saves does not wait.

    Of those that wait meanwhile only the newest is copied.
    """

    def __init__(self, address: str, prefix: str, keep: int, incarnation: int | None):
        """Connects to nothing yet.

        Args:
          address: as of `Copies`.
          prefix: of the names of checkpoints.
          keep: so many of the newest are kept there.
          incarnation: of the run: nothing is copied once a later one has begun. None: it has but
          one.
        """
        self._address, self._prefix, self._keep, self._incarnation = (
            address,
            prefix,
            keep,
            incarnation,
        )
        self._jobs: dict[pathlib.Path, concurrent.futures.Future[None]] = {}
        self._due: dict[pathlib.Path, float] = {}
        self._newest: pathlib.Path | None = None
        self._copies: Copies | None = None
        # No executor: at its end a process waits for those, also for one that hangs.
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self._queue,), name="copies", daemon=True).start()
        weakref.finalize(self, self._queue.put, None)

    def offer(self, folder: pathlib.Path) -> None:
        """Has a checkpoint copied that is whole, and stays so while it is in `needed`."""
        size = sum(path.stat().st_size for path in folder.rglob("*"))
        self._newest = folder
        begins = max([time.monotonic(), *self._due.values()])  # At the latest: one after another.
        self._due[folder] = begins + _PATIENCE + size / _SLOWEST
        self._jobs[folder] = concurrent.futures.Future()
        self._queue.put((self._jobs[folder], self._copy, folder))

    @property
    def needed(self) -> set[pathlib.Path]:
        """Folders that are being copied, or wait for it."""
        return {folder for folder, job in self._jobs.items() if not job.done()}

    def wait(self, seconds: float | None) -> bool:
        """Waits so long (None: as long as copies may take) for all that was offered.

        Returns:
          True if all is copied.

        Raises:
          CopyError: if one could not be, or took longer than ten minutes and what its bytes take at
            1 MB/s; said once.
        """
        if seconds is None:
            seconds = max(self._due.values(), default=0.0) - time.monotonic()
        concurrent.futures.wait(self._jobs.values(), max(seconds, 0.0))
        for folder, job in list(self._jobs.items()):
            late = time.monotonic() > self._due[folder]
            if job.done() or late:
                del self._jobs[folder], self._due[folder]
            if job.done():
                job.result()
            elif late:
                raise CopyError(
                    f"{folder.name} was not copied to {without_password(self._address)} in time, "
                    f"which does not answer. {folder} is intact."
                )
        return not self._jobs

    def _copy(self, folder: pathlib.Path) -> None:
        if folder != self._newest:
            return
        if self._copies is None:  # Here: of some kinds of address a connection is one thread's.
            self._copies = Copies(self._address)
        copies = self._copies
        try:
            if self._incarnation is not None and copies.incarnation > self._incarnation:
                raise CopyError(f"incarnation {self._incarnation} of the run has ended.")
            copies.put(folder)
            for name in copies.names(self._prefix)[: -self._keep]:
                copies.remove(name)
        except CopyError as error:
            raise CopyError(f"{error} {folder} is intact.") from error


def without_password(address: str) -> str:
    """An address as messages say it."""
    return re.sub(r"//[^/@]*@", "//...@", address)


def _work(jobs: queue.SimpleQueue[Any]) -> None:
    """Does one after another, until there is None."""
    while (job := jobs.get()) is not None:
        future, do, what = job
        try:
            future.set_result(do(what))
        except BaseException as error:
            future.set_exception(error)
        del job, future, do  # What they belong to may end meanwhile.


def _line(error: Any) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(". ")
