"""The replay's part of a run's checkpoints where it is another process's: its folders, and sums."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from .checkpoints import Checkpoint, Store, sha256_of

FILE = "replay.npz"
"""Name of the file of an embedded or a shared replay. A folder without it is Reverb's."""


class ReplayFiles:
    """Folders of one run's replay.

    The replay writes a checkpoint into a folder that it names itself, within one that the server
    was given; a manifest beside a learner's checkpoint says which folder belongs to it and what its
    files were.
    """

    def __init__(self, folder: str, write: Callable[[], Callable[[], str]]):
        """Nothing is made yet.

        Args:
          folder: of the run's replay.
          write: `ReplayService.checkpoint`.
        """
        self._folder = pathlib.Path(folder)
        self._write = write

    def save(self, note: Callable[[str], None]) -> Callable[[], Mapping[str, Any] | None]:
        """Has the replay written as it is now.

        Args:
          note: told of it in a line where that could not be.

        Returns:
          A function for any thread: it waits for what is still to be written, and gives the folder
          and the sums of its files; None where the replay could not be written.
        """
        try:
            finish = self._write()
        except (OSError, RuntimeError) as error:
            failure = error
            return lambda: _without(note, failure)

        def sums() -> Mapping[str, Any] | None:
            try:
                path = pathlib.Path(finish())
                files = {
                    file.name: [file.stat().st_size, sha256_of(file)]
                    for file in sorted(path.iterdir())
                    if file.is_file()
                }
            except (OSError, RuntimeError) as error:
                return _without(note, error)
            return {"folder": path.name, "files": files}

        return sums

    def prune(self, store: Store) -> None:
        """Removes folders that no kept checkpoint names."""
        kept = set()
        for path in store.paths():
            try:
                replay = json.loads((path / "manifest.json").read_text())["counters"].get("replay")
            except (OSError, ValueError, KeyError):
                continue
            if replay:
                kept.add(replay["folder"])
        for path in self._folder.glob("*"):
            if path.is_dir() and path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)


def _without(note: Callable[[str], None], error: Exception) -> Mapping[str, Any] | None:
    note(f"warning: the checkpoint is without the replay ({error})")
    return None


def find(
    checkpoint: Checkpoint, folder: pathlib.Path, warn: Callable[[str], None]
) -> pathlib.Path | None:
    """The replay that belongs to a checkpoint, whatever launch wrote it.

    Args:
      checkpoint: opened with its part "replay", if it has one, looked at.
      folder: of the run's replay.
      warn: told in a line where it is damaged.

    Returns:
      A file for `npz.read`, or the folder of a Reverb server; None: there is none that is whole.
    """
    if "replay" in checkpoint.parts:
        return checkpoint.path / FILE
    kept = checkpoint.counters.get("replay")
    if not kept:
        return None
    path = folder / kept["folder"]
    for name, (size, digest) in kept["files"].items():
        file = path / name
        try:
            wrong = file.stat().st_size != size or sha256_of(file) != digest
            why = f"{file} is damaged (it is not what was written)"
        except OSError as error:
            wrong, why = True, f"{file} cannot be read ({error.strerror})"
        if wrong:
            warn(f"warning: {why}; the replay begins empty")
            return None
    return path / FILE if FILE in kept["files"] else path
