"""The newest variables: objects of Ray's store, of which a role knows the newest."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import ray
from ray import exceptions

from .....agents.variables.publisher import Publisher
from .....agents.variables.reader import Server, VariableReader
from ...roles import calls
from ...supervision import role

Nest = Any
_FETCH_SECONDS = 60.0
_FIRST_PERIOD = 0.1
"""Between questions before there is a version: a call takes about a millisecond of a processor, and
while a learner starts all that wait for it ask."""


class RayShelf:
    """Puts each version once; a node fetches it once, and all its readers have that memory."""

    def __init__(self, file: pathlib.Path):
        """Takes a file that keeps the number of the newest version over this role's lives."""
        self._file = file
        self._kept: list[Any] = []

    def newest(self) -> tuple[int, Any]:
        # The objects of an earlier life went with it.
        return (int(self._file.read_text()) if self._file.exists() else -1), None

    def put(self, version: int, variables: Mapping[str, Nest]) -> list[Any]:
        reference = ray.put(jax.tree.map(np.asarray, dict(variables)))
        self._kept = [*self._kept[-1:], reference]
        self._file.write_text(str(version))
        # In a list: of a reference itself, Ray would hand on what it stands for.
        return [reference]


class RayBoard:
    """The board of a variable server (`roles.board.VariableBoard`)."""

    def __init__(self, server: Any):
        """Takes the `VariableRole`, from afar."""
        self._server = server

    def publisher(self) -> Publisher:
        return Publisher(RayShelf(role.current().workspace / "version"), self._server)

    def reader(self) -> VariableReader:
        return VariableReader(
            self._server,
            fetch=_fetch,
            first_period=_FIRST_PERIOD,
            while_waiting=calls.check_stop,
        )


def _fetch(server: Server, newer_than: int) -> tuple[int, dict[str, Nest]] | None:
    found = server.get(newer_than, False)
    if found is None:
        return None
    version, (reference,), _ = found
    try:
        return version, ray.get(reference, timeout=_FETCH_SECONDS)
    except exceptions.RayError as error:  # It went with the learner; there will be another.
        raise calls.Unreachable(f"version {version} is gone") from error
