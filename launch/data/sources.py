"""The sources that `--data SOURCE` may name, and the datasets that they stand for."""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING, Any

from ..errors import RequestError
from ..files.directory import RunDirectory
from . import from_minari, from_run, recording

if TYPE_CHECKING:
    from ...agents.replay.offline.dataset import Dataset
    from ...environments import EnvironmentSpec

KINDS = (
    "the file of a recording (`troupe record`), the directory of a run whose checkpoint has its "
    "replay, or the name or the folder of a local Minari dataset"
)
_MINARI = "minari:"


def load(source: str | os.PathLike[str] | Dataset | None, spec: EnvironmentSpec) -> Dataset:
    """The dataset that a source stands for, compared with the environment.

    Args:
      source: one of `KINDS`; before the name of a Minari dataset may stand "minari:". Or a dataset.
      spec: of the environment.

    Raises:
      ValueError: if there is none, it is damaged or empty, or of another environment.
    """
    if source is None:
        raise RequestError(f"there is no data to learn from; give --data: {KINDS}.")
    dataset = _read(os.fspath(source)) if isinstance(source, str | os.PathLike) else source
    dataset.require(spec)
    return dataset


def resolve(source: str) -> str:
    """A source as it can be found from any working directory."""
    return str(pathlib.Path(source).absolute()) if pathlib.Path(source).exists() else source


def _read(source: str) -> Any:
    path = pathlib.Path(source)
    if source.startswith(_MINARI):
        return from_minari.read(source.removeprefix(_MINARI))
    if path.is_file():
        return recording.read(path)
    if RunDirectory(path).config.exists():
        return from_run.read(path)
    if from_minari.find(source) is not None:
        return from_minari.read(source)
    known = from_minari.names()
    local = f" (there are {', '.join(known)})" if known else ""
    raise RequestError(f"there is no data at {source}; it can be {KINDS}{local}.")
