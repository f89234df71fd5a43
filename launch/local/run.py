"""A run in one process, from its first step to its result."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any

from ...agents.learning import dispatch
from .. import signals
from ..errors import Interrupted, RequestError, RunError
from ..experiment import Experiment, check_identity
from ..files.checkpoints import Checkpoint, Store
from ..files.directory import RunDirectory
from ..files.result import Result, versions
from ..telling import metrics, report
from ..telling.monitor import Monitor
from . import components, saver
from .loop import Loop


def run(
    experiment: Experiment,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    reporter: report.Reporter | None = None,
    request: Mapping[str, Any] | None = None,
) -> Result:
    """Runs an experiment in this process.

    SIGINT and SIGTERM save a checkpoint and end the run, where it is in the main thread.

    Args:
      experiment: what is run.
      out: directory of the run; new or empty, or with `resume` that of an earlier run.
      resume: go on from the newest complete checkpoint of `out`.
      reporter: where words go; None: nowhere but into the log file.
      request: what `config.json` shall say; None: the experiment's identity and budget.

    Returns:
      What was also written to `result.json`.

    Raises:
      ValueError: if the run cannot begin as asked (often its subclass `RequestError`).
      RunError: if it failed on its way; a checkpoint was saved before where that was possible.
      Interrupted: if a signal stopped it.
    """
    began = time.perf_counter()
    dispatch.configure_cpu()
    reporter = reporter or report.Silent()
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(signals.caught())
        directory = stack.enter_context(RunDirectory(out))
        checkpoint = _open(experiment, directory, reporter) if resume else None
        before: Mapping[str, Any] = checkpoint.counters if checkpoint else {}
        resumed = before["resumed"] + 1 if before else 0
        environment = stack.enter_context(components.make_environment(experiment, resumed))
        made = stack.enter_context(components.make(experiment, environment))
        if checkpoint is not None:
            saver.restore(checkpoint, made)
        # Only now is it clear that the run can begin: a directory with a mistake in it would be
        # in the way of the next attempt.
        if not resume:
            directory.create()
        directory.result.unlink(missing_ok=True)
        default = {**experiment.identity(), "steps": experiment.num_actor_steps}
        directory.write(directory.config, request or default)
        log = stack.enter_context(report.Logged(reporter, directory.logs / "main.log"))
        log.line(_first_line(experiment, directory, checkpoint))
        rows = stack.enter_context(
            metrics.MetricsWriter(
                directory.metrics,
                keep_bytes=before.get("metrics_bytes", 0),
                actor_steps=before.get("actor_steps", 0),
            )
        )
        monitor = Monitor(made, rows, log)
        trainer = _Trainer(experiment, directory, made, monitor, stop, before, began)
        try:
            return trainer.run()
        except (Interrupted, RunError) as end:
            log.note(str(end))
            raise


def _open(
    experiment: Experiment, directory: RunDirectory, reporter: report.Reporter
) -> Checkpoint | None:
    """The checkpoint to go on from; None where the run died before its first."""
    directory.reopen()
    checkpoint = Store(directory.checkpoints).newest(
        lambda damage: reporter.line(f"warning: {damage} The one before it is taken.")
    )
    if checkpoint is not None:
        check_identity(checkpoint.identity, experiment.identity(), checkpoint.path)
        done = checkpoint.counters["actor_steps"]
        if directory.result.exists() and done >= experiment.num_actor_steps:
            raise RequestError(
                f"the run in {directory.path} is complete: it has spent its budget of "
                f"{experiment.num_actor_steps} actor steps; give more with --steps to go on."
            )
    return checkpoint


def _first_line(
    experiment: Experiment, directory: RunDirectory, checkpoint: Checkpoint | None
) -> str:
    what = f"{experiment.builder.name} on {experiment.env}, seed {experiment.seed}"
    if checkpoint is None:
        return f"{what}, in {directory.path}"
    steps = checkpoint.counters["actor_steps"]
    return (
        f"{what}, goes on in {directory.path} from {checkpoint.path.name} at {steps:,} actor steps"
    )


class _Trainer:
    """Trains, evaluates and saves, each when it is due."""

    def __init__(
        self,
        experiment: Experiment,
        directory: RunDirectory,
        made: components.Parts,
        monitor: Monitor,
        stop: signals.Stop,
        before: Mapping[str, Any],
        began: float,
    ):
        """Begins or goes on.

        Args:
          before: counters of the checkpoint that the run goes on from; empty at its start.
          began: value of `time.perf_counter()` from which wall seconds count.
        """
        self._began = began
        self._experiment = experiment
        self._directory = directory
        self._parts = made
        self._monitor = monitor
        self._stop = stop
        self._resumed = before["resumed"] + 1 if before else 0
        self._evaluations = before.get("evaluations", 0)
        self._wall_before = before.get("wall_seconds", 0.0)
        self._train_seconds = before.get("train_seconds", 0.0)
        self._loop = Loop(
            made.environment,
            made.actor,
            made.learner,
            made.replay,
            steps_per_dispatch=experiment.builder.steps_per_dispatch,
            actor_steps=before.get("actor_steps", 0),
            episodes=before.get("episodes", 0),
        )
        store = Store(directory.checkpoints, experiment.checkpointing.keep)
        self._saver = saver.Saver(experiment, store, made, self._loop.actor_steps)

    def run(self) -> Result:
        """Goes on until the budget is spent and the policy judged.

        Raises:
          RunError: if something failed.
          Interrupted: if a signal came.
        """
        try:
            self._train()
            self._stop_if_requested()
            final = self._evaluate(self._experiment.evaluation.final_episodes)
            self._stop_if_requested()
        except (Interrupted, RunError):
            raise
        except Exception as error:
            raise self._failed(error) from error
        return self._finish(final)

    def _train(self) -> None:
        loop, monitor, experiment = self._loop, self._monitor, self._experiment
        budget, period = experiment.num_actor_steps, experiment.evaluation_period
        evaluate_at = (loop.actor_steps // period + 1) * period
        while loop.actor_steps < budget and not self._stop.requested:
            until = min(budget, evaluate_at, self._saver.next_step())
            start = time.perf_counter()
            loop.advance(until, monitor.next_time, self._stop)
            self._train_seconds += time.perf_counter() - start
            monitor.look(self._counts(), loop.finished, budget)
            if evaluate_at <= loop.actor_steps < budget:
                self._evaluate(experiment.evaluation.episodes)
                evaluate_at = (loop.actor_steps // period + 1) * period
            if self._saver.is_due(loop.actor_steps):
                self._save()
        monitor.write_row(self._counts(), loop.finished)
        self._save()

    def _stop_if_requested(self) -> None:
        if self._stop.signal_number is not None:
            raise Interrupted(
                self._stop.signal_number,
                f"stopped at {self._loop.actor_steps:,} actor steps with a checkpoint saved; "
                f"go on with `troupe resume {self._directory.path}`.",
            )

    def _failed(self, error: Exception) -> RunError:
        """The error to end with; what was learned until now is saved where that still works."""
        reason = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, ValueError):
            reason = f"{type(error).__name__}: {reason}"
        try:
            self._save()
            saved = f"a checkpoint was saved: `troupe resume {self._directory.path}`"
        except Exception as second:
            saved = f"no checkpoint could be saved after that ({type(second).__name__})"
        message = f"failed at {self._loop.actor_steps:,} actor steps: {reason}; {saved}."
        return RunError(message)

    def _evaluate(self, episodes: int) -> Mapping[str, Any] | None:
        """Evaluates and writes it down; None where it was stopped."""
        steps = self._loop.actor_steps
        outcome = self._parts.evaluator.run(self._evaluations, episodes, steps, self._stop)
        if outcome is None:
            return None
        self._evaluations += 1
        self._monitor.evaluated(self._counts(), outcome.summary())
        return outcome.summary()

    def _save(self) -> None:
        self._saver.save(
            {
                **self._counts(),
                "evaluations": self._evaluations,
                "resumed": self._resumed,
                "metrics_bytes": self._monitor.sync(),
            }
        )

    def _counts(self) -> dict[str, Any]:
        return {
            "actor_steps": self._loop.actor_steps,
            "learner_steps": self._parts.learner.steps,
            "episodes": self._loop.episodes,
            "wall_seconds": round(self._wall_before + time.perf_counter() - self._began, 3),
            "train_seconds": round(self._train_seconds, 3),
        }

    def _finish(self, final: Mapping[str, Any] | None) -> Result:
        experiment, counts, replay = self._experiment, self._counts(), self._parts.replay
        assert final is not None
        target = experiment.evaluation.target_return
        seconds = max(self._train_seconds, 1e-9)
        result = Result(
            agent=experiment.builder.name,
            env=experiment.env,
            seed=int(experiment.seed),
            launch="one-process",
            actors=1,
            learner_hosts=1,
            mesh=None if experiment.partition is None else str(experiment.partition.mesh),
            **counts,
            actor_steps_per_second=counts["actor_steps"] / seconds,
            learner_steps_per_second=counts["learner_steps"] / seconds,
            samples_per_insert={
                "target": replay.spec.samples_per_insert,
                "observed": replay.observed_samples_per_insert,
            },
            evaluation=metrics.evaluations(self._directory.metrics),
            versions=versions(),
            target_return=target,
            reached=None if target is None else final["mean"] >= target,
        )
        self._directory.write(self._directory.result, result.to_json())
        return result
