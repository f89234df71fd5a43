"""Runs of another commit of this package, or of another interpreter with packages of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence

from ...launch import signals
from ...launch.errors import Interrupted, RequestError, RunError
from ...launch.files.directory import RunDirectory
from ...launch.logging import groups
from ...launch.logging.report import Reporter
from ...launch.specification.recipe import Recipe
from .. import checkout
from ..children import Command
from ..grid.request import FILE as GRID
from ..report import again
from ..returns import ledger
from ..returns.figures import Figures, first_difference

_LOOK_SECONDS = 0.1
_WHERE = "import troupe.baselines.command.line, jax; print(troupe.__file__)"


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """The code and the interpreter of runs that others are compared with."""

    commit: str | None
    """Of this package, the whole hash; None: as it is here."""
    python: str
    """The interpreter."""

    @classmethod
    def parse(cls, text: str) -> Elsewhere:
        """Reads a commit, or the path of an interpreter.

        Raises:
          RequestError: if it is neither.
        """
        if os.path.isfile(text) and os.access(text, os.X_OK):
            return cls(None, os.path.abspath(text))
        return cls(checkout.resolve(text), sys.executable)

    @property
    def name(self) -> str:
        return f"commit {self.commit[:12]}" if self.commit else self.python

    @contextlib.contextmanager
    def installed(self) -> Iterator[Mapping[str, str]]:
        """Has the code in a folder of its own, and yields the environment in which it is imported.

        Raises:
          RequestError: if it is not imported there.
        """
        with tempfile.TemporaryDirectory(prefix="troupe-") as folder:
            package = pathlib.Path(folder, "troupe")
            if self.commit is None:
                package.symlink_to(checkout.ROOT)
            else:
                files = checkout.git("a commit is to be run", "archive", self.commit)
                with tarfile.open(fileobj=io.BytesIO(files)) as archive:
                    archive.extractall(package, filter="data")
            # The current directory comes last: a package of that name may lie in it, and agents of
            # the user's own do.
            path = os.pathsep.join((folder, os.getcwd()))
            environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
            self._require_import(environment, package)
            yield environment

    def _require_import(self, environment: Mapping[str, str], package: pathlib.Path) -> None:
        command = [self.python, "-c", _WHERE]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise RequestError(f"{self.name} does not run: {error}.") from error
        found = done.stdout.strip()
        if done.returncode or pathlib.Path(found).parent != package:
            lines = done.stderr.strip().splitlines()
            said = lines[-1] if done.returncode and lines else f"it imports {found}"
            raise RequestError(f"{self.name} does not run: {said}")

    def run(
        self, recipe: Recipe, seeds: int, folder: pathlib.Path, reporter: Reporter, parallel: int
    ) -> list[Figures]:
        """Runs what is left of so many seeds, and returns the figures of each.

        Args: as of `runs.run`; the runs of a look lie in a folder that its first seed names.

        Raises: as of `runs.run`.
        """
        asked = range(recipe.seed, recipe.seed + seeds)
        begun = _begun(folder)
        while left := [one for one in asked if one not in begun or not begun[one].result.exists()]:
            first = left[0]
            if first in begun:
                part = begun[first].path.parent
                words = ["resume", str(part)]
            else:
                part = folder / str(first)
                words = ["train", *_arguments(recipe), "--seed", str(first)]
                words += ["--seeds", str(len(left)), "--parallel", str(parallel)]
                words += ["--out", str(part)]
            reporter.line(f"{self.name}: troupe {shlex.join(words)}")
            self._call(words, folder / "logs" / f"{part.name}.log", reporter)
            begun = _begun(folder)
        return [_figures(recipe, begun[seed]) for seed in asked]

    def _call(self, words: Sequence[str], log: pathlib.Path, reporter: Reporter) -> None:
        """Runs a command of troupe there."""
        stop = signals.Stop()
        with self.installed() as environment, signals.caught(stop, reporter.line):
            process = Command([self.python, "-m", "troupe", *words], log, environment=environment)
            try:
                while not process.ended and not stop.requested:
                    time.sleep(_LOOK_SECONDS)
            finally:
                process.stop()
                process.wait()
        if stop.signal_number is not None:
            raise Interrupted(stop.signal_number, "stopped")
        if process.error is not None:
            raise RunError(f"{self.name}: {process.error}")


def check(recipe: Recipe) -> None:
    """Raises RequestError where runs of a recipe cannot be asked for by a command."""
    _arguments(recipe)


def _arguments(recipe: Recipe) -> list[str]:
    found = again.words(recipe, whole=True)
    if found is None:
        raise RequestError(
            "what is to be run has settings that no flags of `troupe train` ask for; they cannot "
            "be had from another commit."
        )
    return found


def _begun(folder: pathlib.Path) -> dict[int, RunDirectory]:
    """Returns the directories of all runs that were begun, by seed."""
    found = {}
    for path in folder.glob(f"*/{GRID}"):
        first, count = int(path.parent.name), json.loads(path.read_text())["seeds"]
        for seed in range(first, first + count):
            found[seed] = RunDirectory(path.parent / str(seed))
    return found


def _figures(recipe: Recipe, directory: RunDirectory) -> Figures:
    asked = ledger.settings(recipe)
    found = ledger.defaults(recipe) | groups.learning_settings(directory.read_config())
    # A setting that is there no more was what that commit has it.
    different = first_difference({name: found.get(name) for name in asked}, asked)
    if different:
        raise RequestError(f"{directory.path} holds a run of other settings: {different}.")
    result = directory.read_result()
    assert result is not None
    return Figures.of(result, recipe.experiment().clock, str(directory.path))
