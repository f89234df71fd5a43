"""The replay's part of a run's checkpoints: folders that it writes, and their sums."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from .checkpoints import Store, sha256_of
from ..distributed.roles import rpc


class ReplayFiles:
    """Folders of one run's replay.

    The replay writes a checkpoint into a folder that it names itself, within one that the server
    was given; a manifest beside a learner's checkpoint says which folder belongs to it and what its
    files were.
    """

    def __init__(self, folder: str, write: Callable[[], str]):
        """Nothing is made yet.

        Args:
          folder: of the run's replay.
          write: has the server write a checkpoint; returns its folder.
        """
        self._folder = pathlib.Path(folder)
        self._write = write

    def save(self, note: Callable[[str], None]) -> Mapping[str, Any] | None:
        """Has the replay written; None where it could not be, which is noted."""
        try:
            path = pathlib.Path(self._write())
            files = {
                file.name: [file.stat().st_size, sha256_of(file)]
                for file in sorted(path.iterdir())
                if file.is_file()
            }
        except (OSError, RuntimeError, rpc.RemoteError) as error:
            note(f"warning: the checkpoint is without the replay ({error})")
            return None
        return {"folder": path.name, "files": files}

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


def damage(folder: pathlib.Path, files: Mapping[str, Any]) -> str | None:
    """What is wrong with a replay's folder; None: it is as it was written."""
    for name, (size, digest) in files.items():
        file = folder / name
        try:
            if file.stat().st_size != size or sha256_of(file) != digest:
                return f"{file} is damaged (it is not what was written)"
        except OSError as error:
            return f"{file} cannot be read ({error.strerror})"
    return None
