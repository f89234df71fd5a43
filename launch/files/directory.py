"""A run's directory: what lies where in it, and that only one run writes there."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
from collections.abc import Mapping
from typing import IO, Any

from ..errors import RequestError

_LOCK = ".lock"


class RunDirectory:
    """The directory of one run. Reading needs no lock, writing does."""

    def __init__(self, path: str | os.PathLike[str]):
        """Touches nothing.

        Raises:
          RequestError: if it is no path.
        """
        try:
            self.path = pathlib.Path(path)
        except TypeError:
            raise RequestError(f"the directory of a run is a path, not {path!r}.") from None
        self.config = self.path / "config.json"
        self.metrics = self.path / "metrics.jsonl"
        self.result = self.path / "result.json"
        self.checkpoints = self.path / "checkpoints"
        self.best = self.path / "best"
        self.logs = self.path / "logs"
        self._lock: IO[str] | None = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def create(self) -> None:
        """Takes a new or empty directory for a run.

        Raises:
          RequestError: if there is something in it, another run has it, or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._acquire()
            taken = sorted(entry.name for entry in self.path.iterdir() if entry.name != _LOCK)
            if taken:
                self.release()
                advice = (
                    f"go on with `troupe resume {self.path}` or name another with --out"
                    if self.config.exists()
                    else "name another with --out"
                )
                raise RequestError(f"{self.path} is not empty (it holds {taken[0]}); {advice}.")
            self.logs.mkdir()
        except OSError as error:
            raise self._unwritable(error) from error

    def reopen(self) -> None:
        """Takes the directory of an earlier run.

        Raises:
          RequestError: if there is none, another run has it, or it cannot be written.
        """
        self.read_config()
        try:
            self._acquire()
            self.logs.mkdir(exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error

    def read_config(self) -> dict[str, Any]:
        """Reads what the run was asked to do.

        Raises:
          RequestError: if this is not the directory of a run.
        """
        return self._read(self.config)

    def read_result(self) -> dict[str, Any] | None:
        """The run's result; None where it has not ended."""
        return self._read(self.result) if self.result.exists() else None

    def write(self, path: pathlib.Path, content: Mapping[str, Any]) -> None:
        """Writes JSON so that a reader finds the old file or the new one, never half of it."""
        temporary = path.with_name(f".{path.name}")
        with open(temporary, "w") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    def release(self) -> None:
        """Lets others have the directory. The system does so too when the process dies."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def check_free(self) -> None:
        """Raises RequestError where another run has the directory."""
        if (self.path / _LOCK).exists():
            self._acquire()
            self.release()

    def _acquire(self) -> None:
        lock = open(self.path / _LOCK, "a")  # noqa: SIM115 - held until `release`.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise RequestError(
                f"another run is writing into {self.path}; wait for it or name another directory."
            ) from None
        self._lock = lock

    def _read(self, path: pathlib.Path) -> dict[str, Any]:
        try:
            found = json.loads(path.read_text())
            if not isinstance(found, dict):
                raise ValueError("it holds no object")
            return found
        except FileNotFoundError:
            raise RequestError(f"{self.path} is not a run's directory: no {path.name}.") from None
        except (OSError, ValueError) as error:
            raise RequestError(f"cannot read {path}: {error}.") from error

    def _unwritable(self, error: OSError) -> RequestError:
        return RequestError(
            f"cannot write into {self.path}: {error.strerror}; name another directory with --out."
        )
