"""What every kind of run does around its loop: it opens, tells, counts its seconds and ends."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import signals
from .errors import Interrupted, RequestError, RunError
from .experiment import Experiment, check_identity
from .files.checkpoints import Checkpoint, Store
from .files.directory import RunDirectory
from .files.result import Result, versions
from .telling import metrics, report
from .telling.monitor import Monitor, Numbers

Counts = Mapping[str, Any]


def newest(
    experiment: Experiment, out: str | os.PathLike[str], warn: Callable[[str], None]
) -> Checkpoint | None:
    """The checkpoint that a run goes on from; None where it died before its first.

    Raises:
      RequestError: if it is another run's.
      CheckpointError: if all are damaged.
    """

    def say(damage: str) -> None:
        warn(f"warning: {damage} The one before it is taken.")

    checkpoint = Store(RunDirectory(out).checkpoints).newest(say)
    if checkpoint is not None:
        check_identity(checkpoint.identity, experiment.identity(), checkpoint.path)
    return checkpoint


@contextlib.contextmanager
def entered(
    experiment: Experiment, out: str | os.PathLike[str], reporter: report.Reporter | None
) -> Iterator[Frame]:
    """A run from its first signal to its last word; what ends it early is also in its log.

    Raises:
      RunError: in place of an OSError, naming the directory.
    """
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(signals.caught())
        directory = stack.enter_context(RunDirectory(out))
        run = Frame(experiment, directory, reporter or report.Reporter(), stop, stack)
        try:
            yield run
        except (Interrupted, RunError) as end:
            run.note(str(end))
            raise
        except OSError as error:
            message = f"{directory.path}: {error.strerror or error}"
            raise RunError(f"{message}; the newest checkpoint in it, if any, is intact.") from error


class Frame:
    """One run, from `entered`: `reopen` where it goes on, `begin`, the loop, `finish`.

    Attributes:
      directory: of the run.
      stop: looked at by its loop.
      before: counters of the checkpoint that it goes on from; empty at its start.
      monitor: from `begin` on.
      train_seconds: those spent in the loop, kept by it.
    """

    monitor: Monitor

    def __init__(
        self,
        experiment: Experiment,
        directory: RunDirectory,
        reporter: report.Reporter,
        stop: signals.Stop,
        stack: contextlib.ExitStack,
    ):
        self.directory, self.stop = directory, stop
        self.before: Counts = {}
        self.train_seconds = 0.0
        self.warn = reporter.line
        self._experiment, self._reporter, self._stack = experiment, reporter, stack
        self._began = time.perf_counter()
        self._resumed = False
        self._checkpoint: Checkpoint | None = None
        self._log: report.Logged | None = None

    def reopen(self, find: Callable[[], Checkpoint | None]) -> Checkpoint | None:
        """Takes the directory of an earlier run, and what `find` then finds in it to go on from.

        Raises:
          RequestError: if there is no such run, another has its directory, or it is complete.
        """
        self.directory.reopen()
        self._resumed, self._checkpoint = True, find()
        if self._checkpoint is not None:
            self.before = self._checkpoint.counters
            self.train_seconds = self.before["train_seconds"]
            budget, clock = self._experiment.budget, self._experiment.clock
            if self.directory.result.exists() and self.before[clock.name] >= budget:
                raise RequestError(
                    f"the run in {self.directory.path} is complete: it has spent its budget of "
                    f"{budget} {clock.words}; give more with --steps to go on."
                )
        return self._checkpoint

    def begin(
        self,
        request: Mapping[str, Any] | None,
        max_size: int | None,
        numbers: Callable[[], Numbers],
        detail: str = "",
    ) -> None:
        """Writes and tells what is run. Only now: a directory with a mistake in it would be in the
        way of the next attempt.

        Args:
          request: what `config.json` shall say; None: the experiment's identity and budget.
          max_size: items that the replay can hold; None: there is none to be filled.
          numbers: of training, asked for when they are due.
          detail: what else the first line says.

        Raises:
          RequestError: if the directory is not empty or cannot be written.
        """
        directory, experiment = self.directory, self._experiment
        clock = experiment.clock
        if not self._resumed:
            directory.create()
        directory.result.unlink(missing_ok=True)
        default = {**experiment.identity(), "steps": experiment.budget}
        directory.write(directory.config, request or default)
        log = report.Logged(self._reporter, directory.logs / "main.log")
        self._log = self._stack.enter_context(log)
        what = f"{experiment.builder.name} on {experiment.env}, seed {experiment.seed}"
        where = f"in {directory.path}"
        if self._checkpoint is not None:
            at = f"{self.before[clock.name]:,} {clock.words}"
            where = f"goes on {where} from {self._checkpoint.path.name} at {at}"
        log.line(f"{what}, {where}{detail}")
        rows = metrics.MetricsWriter(
            directory.metrics,
            clock=clock.name,
            steps=self.before.get(clock.name, 0),
            evaluations=self.before.get("evaluations", 0),
        )
        self._stack.enter_context(rows)
        self.monitor = Monitor(rows, log, max_size, numbers, clock)

    def note(self, text: str) -> None:
        """A line for the log alone: the user is told in another way."""
        if self._log is not None:
            self._log.note(text)

    def counts(self, actor_steps: int, learner_steps: int, episodes: int) -> dict[str, Any]:
        """Those of a row of metrics (`metrics.COUNTS`)."""
        wall = self.before.get("wall_seconds", 0.0) + time.perf_counter() - self._began
        return {
            "actor_steps": actor_steps,
            "learner_steps": learner_steps,
            "episodes": episodes,
            "wall_seconds": round(wall, 3),
            "train_seconds": round(self.train_seconds, 3),
        }

    def stopped(self, steps: int, saved: str = " with a checkpoint saved") -> None:
        """Raises Interrupted where a signal came."""
        if self.stop.signal_number is not None:
            raise Interrupted(
                self.stop.signal_number,
                f"stopped at {steps:,} {self._experiment.clock.words}{saved}; "
                f"go on with `troupe resume {self.directory.path}`.",
            )

    def finish(
        self,
        kind: str,
        counts: Counts,
        samples_per_insert: tuple[float | None, float],
        *,
        actors: int = 1,
        learner_hosts: int = 1,
    ) -> Result:
        """Writes what the run came to.

        Args:
          kind: of launch.
          counts: at its end.
          samples_per_insert: the target, and what was observed.
          actors: how many acted.
          learner_hosts: processes that were the learner.
        """
        experiment = self._experiment
        target, observed = samples_per_insert
        evaluation = metrics.evaluations(self.directory.metrics)
        wanted = experiment.evaluation.target_return
        seconds = max(self.train_seconds, 1e-9)
        result = Result(
            agent=experiment.builder.name,
            env=experiment.env,
            seed=int(experiment.seed),
            launch=kind,
            actors=actors,
            learner_hosts=learner_hosts,
            mesh=None if experiment.partition is None else str(experiment.partition.mesh),
            **counts,
            actor_steps_per_second=counts["actor_steps"] / seconds,
            learner_steps_per_second=counts["learner_steps"] / seconds,
            samples_per_insert={"target": target, "observed": observed},
            evaluation=evaluation,
            versions=versions(),
            target_return=wanted,
            reached=None if wanted is None else evaluation[-1]["mean"] >= wanted,
        )
        self.directory.write(self.directory.result, result.to_json())
        return result
