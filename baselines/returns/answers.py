"""Answers of comparisons that are kept: whether returns were equal at several scales.

Each agent, environment and list of scales has a file, which its next comparison replaces. Seeds of
the same run at a scale are taken for run, whichever comparison they are kept of, so that one may go
on on another machine, or with more scales.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from ...launch.errors import RequestError
from . import ledger
from .figures import Figures

FOLDER = pathlib.Path(__file__).parent / "verdicts"
_LONGEST = 150
"""Characters of a file's name, which file systems take."""


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
    """Of its last seeds."""
    versions: Mapping[str, str]
    outcome: Mapping[str, Any]
    """Content of `comparison.json`: the rule, every seed's figures and the verdicts."""
    request: Mapping[str, Any] | None = None
    """Content of `compare.json`: what was asked for; None: not kept, and nothing goes on."""
    earlier: Sequence[str] = ()
    """Commits of the seeds before."""

    @property
    def scales(self) -> tuple[str, ...]:
        """All scales, the first one before those that are compared with it."""
        return tuple(self.outcome["figures"])

    @property
    def commits(self) -> tuple[str, ...]:
        """All commits that seeds are of, the last one at the end."""
        return (*(one for one in self.earlier if one != self.commit), self.commit)

    def figures(self) -> dict[str, list[Figures]]:
        """Every seed's figures, by scale."""
        found = self.outcome["figures"]
        return {scale: [Figures(**one) for one in seeds] for scale, seeds in found.items()}

    def write(self, folder: pathlib.Path | None = None) -> pathlib.Path:
        """Writes them, and returns their file.

        Args:
          folder: of the answers; None: that of the package.

        Raises:
          RequestError: if they cannot be written.
        """
        path = (folder or FOLDER) / _name(self.agent, self.env, self.scales)
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
    return [_read(path) for path in sorted(folder.glob("*.json"))]


def find(agent: str, env: str, folder: pathlib.Path | None = None) -> list[KeptAnswers]:
    """Reads all that is kept of an agent and an environment.

    Raises:
      RequestError: if a file is damaged.
    """
    return [one for one in read(folder or FOLDER) if (one.agent, one.env) == (agent, env)]


def _name(agent: str, env: str, scales: Sequence[str]) -> str:
    """Returns the name of a file: of all scales, or where they are long of the first and a sum."""
    whole = ledger.stem(agent, env, *scales)
    if len(whole) > _LONGEST:
        number = zlib.crc32("\n".join(scales).encode())
        whole = f"{ledger.stem(agent, env, scales[0])}-{len(scales)}-{number:08x}"
    return f"{whole}.json"


def _read(path: pathlib.Path) -> KeptAnswers:
    try:
        return KeptAnswers(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise RequestError(f"{path} holds no answers: {error}.") from error
