"""A dataset as one file: an npz (see `files.npz`) whose large arrays are read in place."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import RequestError, RunError
from ..files import npz, specs

if TYPE_CHECKING:
    from ...agents.replay.offline.dataset import Dataset

_KIND, _FORMAT = "troupe recording", 1
_MAPPED_BYTES = 64 << 20
"""Arrays of so many bytes stay in the file, and are read as they are needed."""
_ARRAYS = ("observation", "action", "reward", "discount", "step_type")


def write(path: pathlib.Path, dataset: Dataset, about: Mapping[str, Any]) -> None:
    """Writes a file that is complete or not there.

    Args:
      path: of a file that does not exist yet.
      dataset: what is written.
      about: where it comes from, as values that JSON can hold.

    Raises:
      RunError: if it cannot be written.
    """
    content = {
        "kind": _KIND,
        "format": _FORMAT,
        "about": dict(about),
        "observations": specs.encode(dataset.observations),
        "actions": specs.encode(dataset.actions),
        **{name: getattr(dataset, name) for name in _ARRAYS},
    }
    temporary = path.with_name(f".{path.name}.writing")
    try:
        with open(temporary, "wb") as file:
            npz.write(file, content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror or error}.") from error


def require_free(path: pathlib.Path) -> None:
    """Raises RequestError where a recording cannot be written to a path."""
    if path.exists():
        raise RequestError(f"{path} exists; name another file with --out.")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise RequestError(f"cannot write {path}: {path.parent} is no folder to write in.")


def read(path: pathlib.Path) -> Dataset:
    """The dataset in a file.

    Raises:
      RequestError: if it is damaged, or no recording.
      ValueError: if what is in it cannot be learned from.
    """
    from ...agents.replay.offline.dataset import Dataset as Made

    try:
        with open(path, "rb") as file:
            content = npz.read(file, mapped_bytes=_MAPPED_BYTES)
        if not isinstance(content, dict) or content.get("kind") != _KIND:
            raise RequestError(f"{path} is no recording of `troupe record`.")
        if content["format"] != _FORMAT:
            raise RequestError(
                f"{path} has format {content['format']}; this version reads format {_FORMAT}."
            )
        described = {name: specs.decode(content[name]) for name in ("observations", "actions")}
        arrays = {name: content[name] for name in _ARRAYS}
    except RequestError:
        raise
    except (OSError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise RequestError(f"{path} is damaged, or no recording: {reason}.") from error
    return Made(**described, **arrays, source=str(path))
