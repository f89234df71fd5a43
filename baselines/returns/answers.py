"""Answers of comparisons that are kept: whether returns were equal at several scales.

Each agent, environment and first scale has a file, which its next comparison replaces.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from ...launch.errors import RequestError
from . import ledger

FOLDER = pathlib.Path(__file__).parent / "verdicts"


@dataclasses.dataclass(frozen=True)
class KeptAnswers:
    """The answers of one comparison."""

    agent: str
    env: str
    first: str
    """The scale that all others are compared with."""
    command: str
    """It does the comparison again."""
    commit: str
    versions: Mapping[str, str]
    outcome: Mapping[str, Any]
    """Content of `comparison.json`: the rule, every seed's figures and the verdicts."""

    def write(self, folder: pathlib.Path | None = None) -> pathlib.Path:
        """Writes them, and returns their file.

        Args:
          folder: of the answers; None: that of the package.

        Raises:
          RequestError: if they cannot be written.
        """
        path = (folder or FOLDER) / f"{ledger.stem(self.agent, self.env, self.first)}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")
        except OSError as error:
            reason = error.strerror or error
            raise RequestError(f"the answers cannot be kept in {path}: {reason}.") from error
        return path


def read(folder: pathlib.Path) -> list[KeptAnswers]:
    """Reads all that are kept in a folder, in order of their files' names.

    Raises:
      RequestError: if a file is damaged, naming it.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(KeptAnswers(**json.loads(path.read_text())))
        except (ValueError, TypeError) as error:
            raise RequestError(f"{path} holds no answers: {error}.") from error
    return found
