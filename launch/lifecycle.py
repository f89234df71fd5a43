"""The frame of every kind of run around its loop: it opens, tells, counts seconds and ends."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from . import signals
from .callbacks import Callbacks, StopAtTarget
from .errors import Interrupted, RequestError, RunError
from .experiment import Experiment, check_identity
from .files.best import BestPolicy
from .files.checkpoints import Checkpoint, Store
from .files.directory import RunDirectory
from .files.result import Result, versions
from .logging import metrics, report
from .logging.monitor import Monitor, Numbers
from .specification.begun import begun

Counts = Mapping[str, Any]


def newest(
    experiment: Experiment, out: str | os.PathLike[str], warn: Callable[[str], None]
) -> Checkpoint:
    """The checkpoint that a run goes on from.

    Raises:
      RequestError: if there is none, or it is another run's.
      CheckpointError: if all are damaged.
    """
    directory = RunDirectory(out)
    store = Store(directory.checkpoints, address=experiment.checkpointing.copies)
    checkpoint = store.newest(warn, spare=("actor", "replay"))
    if checkpoint is None:
        directory.read_config()  # It may be no run's at all.
        raise RequestError(
            f"{directory.path} has no checkpoint to go on from; begin a run of its own with "
            "another --out."
        )
    check_identity(checkpoint.identity, experiment.identity(), checkpoint.path)
    return checkpoint


@contextlib.contextmanager
def entered(
    experiment: Experiment,
    out: str | os.PathLike[str],
    reporter: report.Reporter | None,
    progress: bool = True,
    stop: signals.Stop | None = None,
) -> Iterator[RunLifecycle]:
    """A run from its first signal to its last word. Its log has the error that ends it early, too.

    Args:
      experiment: what is run.
      out: directory of the run.
      reporter: where words go; None: to standard output, where there is to be `progress`.
      progress: whether words are shown.
      stop: ends the run as a signal does; None: one of its own.

    Raises:
      RunError: in place of an OSError, naming the directory.
    """
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(RunDirectory(out))
        if reporter is None:
            reporter = report.for_stream() if progress else report.Reporter()
            stack.callback(reporter.close)
        run = RunLifecycle(experiment, directory, reporter, stack, stop)
        try:
            with run.watched():
                yield run
        except (Interrupted, RunError) as end:
            run.note(str(end), end.__cause__)
            raise
        except OSError as error:
            run.note("", error)
            message = f"{directory.path}: {error.strerror or error}"
            raise RunError(f"{message}; the newest checkpoint in it, if any, is intact.") from error
        except Exception as error:
            run.note("", error)
            raise


class RunLifecycle:
    """One run, from `entered`: `reopen` where it goes on, `begin`, the loop, `finish`.

    Attributes:
      experiment: what is run.
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
        stack: contextlib.ExitStack,
        stop: signals.Stop | None = None,
    ):
        self.directory, self.stop = directory, stop or signals.Stop()
        self.before: Counts = {}
        self.train_seconds = 0.0
        self.warn = reporter.line
        self.experiment, self._reporter, self._stack = experiment, reporter, stack
        self._began = time.perf_counter()
        self._resumed = False
        self._checkpoint: Checkpoint | None = None
        self._log: report.Logged | None = None
        judging = experiment.evaluation
        self._stops_at_target = judging.stop_at_target
        called = list(experiment.callbacks)
        if judging.stop_at_target and judging.target_return is not None:
            called.append(StopAtTarget(judging.target_return))
        self._callbacks = Callbacks(called, self._say, self.note)
        self._callbacks_told = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Has callbacks told that the run failed, where it does."""
        try:
            yield
        except BaseException:
            if self._callbacks_told:
                self._callbacks_told = False
                self._callbacks.end(None)
            raise

    @property
    def ending(self) -> str | None:
        """The reason why a callback asked the run to end early; None: none has."""
        return self._callbacks.ending

    def saved(self, path: pathlib.Path, counts: Counts) -> None:
        """Tells of a checkpoint."""
        self._callbacks.call("on_checkpoint", path, counts)

    def reopen(self, find: Callable[[], Checkpoint]) -> Checkpoint:
        """Takes the directory of an earlier run, and what `find` then finds in it to go on from.

        Raises:
          RequestError: if there is no such run, another has its directory, or it is complete.
        """
        self.directory.reopen()
        self._resumed, self._checkpoint = True, find()
        self.before = self._checkpoint.counters
        self.train_seconds = self.before["train_seconds"]
        experiment, result = self.experiment, self.directory.read_result()
        clock = experiment.clock
        if result is not None and self.before[clock.name] >= experiment.spent_at:
            raise RequestError(
                f"the run in {self.directory.path} is complete: it has spent its budget of "
                f"{experiment.budget} {clock.words}; give more with --steps to go on."
            )
        if result is not None and result["reached"] and self._stops_at_target:
            raise RequestError(
                f"the run in {self.directory.path} is complete: it has reached its target "
                f"return of {result['target_return']:g}, at which it was to stop."
            )
        return self._checkpoint

    def begin(
        self,
        request: Mapping[str, Any] | None,
        max_size: int | None,
        numbers: Callable[[], Numbers],
        detail: str = "",
        launch: str = "one-process",
        roles: Mapping[str, Any] | None = None,
        engine: str | None = None,
        remarks: Sequence[str] = (),
    ) -> None:
        """Writes and reports the request of the run.

        Not earlier: a directory with a mistake in it would be in the way of the next attempt.

        Args:
          request: what `config.json` shall say; None: what can be said of the experiment.
          max_size: items that the replay can hold; None: there is none to be filled.
          numbers: of training, asked for when they are due.
          detail: what else the first line says.
          launch: its kind.
          roles: fields of `roles.Roles` that are not as by default.
          engine: of the launch; None: it is in one process.
          remarks: on its environment, to be said as warnings.

        Raises:
          RequestError: if the directory is not empty or cannot be written, or so the address of
            checkpoints.
        """
        directory, experiment = self.directory, self.experiment
        clock = experiment.clock
        if not self._resumed:
            Store(directory.checkpoints, address=experiment.checkpointing.copies).claim()
            directory.create()
        directory.result.unlink(missing_ok=True)
        request = request or begun(experiment, launch, roles or {}, engine).to_json()
        directory.write(directory.config, request)
        log = report.Logged(self._reporter, directory.logs / "main.log")
        self._log = self._stack.enter_context(log)
        # Not before: until now nothing would be lost, and nobody looks.
        self._stack.enter_context(signals.caught(self.stop, log.line))
        what = f"{experiment.builder.name} on {experiment.env}, seed {experiment.seed}"
        where = f"in {directory.path}"
        if self._checkpoint is not None:
            at = f"{self.before[clock.name]:,} {clock.words}"
            where = f"goes on {where} from {self._checkpoint.path.name} at {at}"
        log.line(f"{what}, {where}{detail}")
        for remark in remarks:
            log.line(f"warning: {remark}")
        rows = metrics.MetricsWriter(
            directory.metrics,
            clock=clock.name,
            steps=self.before.get(clock.name, 0),
            evaluations=self.before.get("evaluations", 0),
        )
        self._stack.enter_context(rows)
        rows.describe({**_settings(experiment), "launch": launch})
        self.monitor = Monitor(rows, log, max_size, numbers, self._callbacks, self.before, clock)
        self._callbacks_told = True
        self._callbacks.call("on_begin", directory.path, request)

    def _say(self, text: str) -> None:
        """A line for the user and the log."""
        (self._log or self._reporter).line(text)

    def note(self, text: str, error: BaseException | None = None) -> None:
        """A line for the log alone, as the user is told in another way, and where it came from."""
        if self._log is not None:
            trace = traceback.format_exception(error) if error is not None else []
            with contextlib.suppress(OSError):  # The disk may be full.
                self._log.note("".join([text, "\n" if trace else "", *trace]).strip())

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
                f"stopped at {steps:,} {self.experiment.clock.words}{saved}; "
                f"go on with `troupe resume {self.directory.path}`.",
            )

    def finish(
        self,
        kind: str,
        counts: Counts,
        samples_per_insert: tuple[float | None, float],
        *,
        devices: Mapping[str, str],
        actors: int = 1,
        learner_hosts: int = 1,
        engine: str | None = None,
    ) -> Result:
        """Writes the result of the run.

        Args:
          kind: of launch.
          counts: at its end.
          samples_per_insert: the target, and what was observed.
          devices: platforms of the actor and of the learner.
          actors: how many acted.
          learner_hosts: processes that were the learner.
          engine: that kept the roles running; None: there were none.
        """
        experiment = self.experiment
        target, observed = samples_per_insert
        if not counts["learner_steps"]:
            self.monitor.line(
                f"warning: nothing was learned: {counts['actor_steps']:,} actor steps were too few "
                "for the first gradient step; go on with `troupe resume "
                f"{self.directory.path} --steps N`"
            )
        evaluation = metrics.evaluations(self.directory.metrics)
        wanted = experiment.evaluation.target_return
        best = BestPolicy(self.directory.best).held()
        seconds = max(self.train_seconds, 1e-9)
        result = Result(
            agent=experiment.builder.name,
            env=experiment.env,
            seed=int(experiment.seed),
            launch=kind,
            actors=actors,
            learner_hosts=learner_hosts,
            mesh=None if experiment.partition is None else str(experiment.partition.mesh),
            devices=devices,
            **counts,
            actor_steps_per_second=counts["actor_steps"] / seconds,
            learner_steps_per_second=counts["learner_steps"] / seconds,
            samples_per_insert={"target": target, "observed": observed},
            evaluation=evaluation,
            versions=versions(),
            target_return=wanted,
            reached=None
            if wanted is None
            else bool(evaluation) and evaluation[-1]["mean"] >= wanted,
            best=None if best is None else best.counters,
            ended=self.ending,
            engine=engine,
        )
        self.directory.write(self.directory.result, result.to_json())
        if self.ending is not None:
            self.monitor.line(f"ended early: {self.ending}")
        self._callbacks_told = False
        self._callbacks.end(result)
        return result


def _settings(experiment: Experiment) -> dict[str, Any]:
    """Returns the settings in which a run may differ from others, as texts and numbers."""
    identity = experiment.identity()
    found = {"agent": identity["agent"], "env": identity["env"], "seed": identity["seed"]}
    found["steps"] = experiment.budget
    for name, value in identity["config"].items():
        plain = isinstance(value, bool | int | float | str)
        found[f"config.{name}"] = value if plain else json.dumps(value)
    return found
