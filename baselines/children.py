"""Processes that run what they are asked for, into a log."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from .together import Asked

_PATIENCE = 30.0
"""Seconds that a run has for its last checkpoint."""
_MODULE = __name__.rpartition(".")[0] + ".child"


class Command:
    """A process that is given something to read, and ends with whoever started it where it heeds
    the end of that."""

    def __init__(
        self,
        command: Sequence[str],
        log: pathlib.Path,
        asked: str = "",
        environment: Mapping[str, str] | None = None,
    ):
        """Starts it.

        Args:
          command: words.
          log: file that what it says is added to.
          asked: a line that it reads.
          environment: variables; None: those of this process.
        """
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=environment,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It has ended, and its code will say so.
            self._process.stdin.write(f"{asked}\n".encode())
            self._process.stdin.flush()  # And left open: the process ends when it is closed.

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def error(self) -> str | None:
        """Why it ended before its time; None: it did not, or has not."""
        code = self._process.poll()
        if not code:
            return None
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"its process ended with code {code}"

    def stop(self) -> None:
        """Asks it to end; runs save checkpoints first."""
        if not self.ended:
            self._process.terminate()

    def wait(self) -> None:
        """Waits until it has ended, and ends it where it takes too long."""
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


class Child(Command):
    """A process that runs recipes, as `child` does."""

    def __init__(self, runs: Sequence[Asked], log: pathlib.Path):
        """Starts it.

        Args:
          runs: recipes, as of `together.run`.
          log: file that what it says is added to.
        """
        asked = [
            {
                "recipe": one.recipe.to_json(),
                "out": os.fspath(one.out),
                "resume": one.resume,
                "name": one.name,
            }
            for one in runs
        ]
        super().__init__([sys.executable, "-m", _MODULE], log, json.dumps(asked))
