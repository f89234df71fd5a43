"""A trial that runs: its runs, one a seed, each a process, and their returns."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil

from ...launch.files.directory import RunDirectory
from ...launch.logging import metrics
from ...launch.specification.recipe import Recipe
from ..children import Child
from ..together import Asked
from .study import Proposal

_WORST = float("-inf")
"""A return that is no number."""


def path_of(folder: pathlib.Path, index: int, seed: int) -> pathlib.Path:
    """The directory of a trial's run."""
    return folder / "runs" / f"{index:03d}-{seed}"


class Attempt:
    """One trial, from its first run to its last.

    Attributes:
      proposal: what is tried.
      steps: evaluations that `news` has told.
      error: why a run ended before its time; None: none did.
      value: the mean of the final returns over the seeds, once all have ended.
    """

    def __init__(self, folder: pathlib.Path, recipe: Recipe, seeds: int, proposal: Proposal):
        """Starts the first run, or goes on with what an earlier attempt has left.

        Args:
          folder: of the sweep.
          recipe: of the sweep; the proposal's settings are set in it.
          seeds: how many runs there are, from the recipe's seed on.
          proposal: what is tried.
        """
        self.proposal = proposal
        self.steps = 0
        self.error: str | None = None
        self.value: float | None = None
        config = {**recipe.config, **proposal.settings}
        self._folder = folder
        self._recipes = [
            dataclasses.replace(recipe, config=config, seed=recipe.seed + number)
            for number in range(seeds)
        ]
        self._finals: list[float] = []
        self._child: Child | None = None
        self._seen = 0
        self._size = -1
        self._next()

    @property
    def ended(self) -> bool:
        return self.value is not None or self.error is not None

    def news(self) -> list[tuple[int, float]]:
        """Evaluations since the last call: their numbers, from 1, and the returns.

        A return is that of a seed, averaged with the final ones of the seeds before it. Where a run
        has ended, the next one is started.
        """
        if self.ended:
            return []
        child = self._child
        ended = child is None or child.ended
        found = self._read(ended)
        if child is not None and child.error is not None:
            self.error = child.error
        elif ended:
            self._finals.append(self._final())
            self._next()
        return found

    def stop(self) -> None:
        """Asks the run to save a checkpoint and end."""
        if self._child is not None:
            self._child.stop()

    def wait(self) -> None:
        """Waits for a run that was asked to end, and ends it where it does not."""
        if self._child is not None:
            self._child.wait()
            self._child = None

    def _next(self) -> None:
        """Starts the run of the next seed; one that an earlier attempt has ended is only read."""
        self.wait()
        self._seen, self._size = 0, -1
        done = len(self._finals)
        if done == len(self._recipes):
            self.value = sum(self._finals) / done
            return
        directory = RunDirectory(self._path)
        if directory.result.exists():
            return
        resume = any(directory.checkpoints.glob("checkpoint-*"))
        if not resume and directory.path.exists():
            shutil.rmtree(directory.path)
        asked = Asked(self._recipes[done], directory.path, resume)
        self._child = Child([asked], self._log)

    @property
    def _path(self) -> pathlib.Path:
        return path_of(self._folder, self.proposal.number, self._recipes[len(self._finals)].seed)

    def _read(self, ended: bool) -> list[tuple[int, float]]:
        path = RunDirectory(self._path).metrics
        size = path.stat().st_size if path.exists() else 0
        if size == self._size and not ended:
            return []
        self._size = size
        rows = metrics.evaluations(path) if size else []
        new, self._seen = rows[self._seen :], max(len(rows), self._seen)
        before, first = self._finals, self.steps + 1
        self.steps += len(new)
        returns = [_WORST if row["mean"] is None else row["mean"] for row in new]
        means = [sum([*before, one]) / (len(before) + 1) for one in returns]
        return list(enumerate(means, first))

    def _final(self) -> float:
        result = RunDirectory(self._path).read_result()
        assert result is not None
        return result["evaluation"][-1]["mean"]

    @property
    def _log(self) -> pathlib.Path:
        return self._folder / "logs" / f"{self._path.name}.log"
