"""A run in one process, from its first step to its result."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from ... import environments
from ...agents.programs import runtime
from .. import lifecycle, seeds, signals
from ..callbacks import CallbackError
from ..errors import DivergedError, Interrupted, RunError
from ..evaluation import opponents
from ..experiment import Experiment, require_experiment
from ..factory import check_budget, short_budget
from ..files.best import BestPolicy
from ..files.checkpoints import Store
from ..files.result import Result
from ..files.writer import Written
from ..logging import report
from ..logging.monitor import Numbers
from ..remarks import remarks
from . import components, finite, saver
from .loop import CatchUp, LearningLoop, Loop, TrainingLoop
from .self_play import OpponentChoice


def run(
    experiment: Experiment,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    progress: bool = True,
    reporter: report.Reporter | None = None,
    request: Mapping[str, Any] | None = None,
) -> Result:
    """Runs an experiment in this process, step by step.

    SIGINT and SIGTERM save a checkpoint and end the run, where it is in the main thread.
    Args, returns and raises as of `launch.run`.
    """
    return train(
        experiment,
        out,
        kind="one-process",
        make=functools.partial(components.make, check=True),
        make_loop=_make_loop,
        resume=resume,
        progress=progress,
        reporter=reporter,
        request=request,
    )


def _make_loop(
    experiment: Experiment, run: lifecycle.RunLifecycle, made: components.Components
) -> Loop | LearningLoop:
    if made.actor is None:
        return LearningLoop(made.learner)
    steps = experiment.builder.steps_per_dispatch
    between: Callable[[], bool] = CatchUp(made.learner.step, made.replay, steps, run.stop)
    game: Any = made.environment
    if (how := opponents.self_play_of(game)) is not None:

        def present() -> Any:
            return made.learner.get_variables(("policy",))[0]

        seed = seeds.derive(experiment.seed, "actor", 0, run.before.get("resumed", 0))
        between = OpponentChoice(between, game, how, present, seed)
    return Loop(
        made.environment,
        made.actor,
        between,
        actor_steps=run.before.get("actor_steps", 0),
        episodes=run.before.get("episodes", 0),
    )


def train(
    experiment: Experiment,
    out: str | os.PathLike[str],
    *,
    kind: str,
    make: Callable[[Experiment, environments.Vector], components.Components],
    make_loop: Callable[[Experiment, lifecycle.RunLifecycle, components.Components], TrainingLoop],
    resume: bool,
    progress: bool,
    reporter: report.Reporter | None,
    request: Mapping[str, Any] | None,
    stop: signals.Stop | None = None,
) -> Result:
    """Runs an experiment in this process, with the parts and the loop of a kind of launch.

    Args:
      kind: of launch.
      make: the parts around the environments.
      make_loop: the loop that goes on with them, from the counters of `run.before`.
      experiment, out, resume, progress, reporter, request: as of `run`, with what it returns and
        raises.
      stop: ends the run as a signal does; None: one of its own.
    """
    require_experiment(experiment)
    experiment.require_data()
    runtime.configure_cpu()
    runtime.require_devices()
    with lifecycle.entered(experiment, out, reporter, progress, stop) as run:
        checkpoint = (
            run.reopen(lambda: lifecycle.newest(experiment, out, run.warn)) if resume else None
        )
        resumed = checkpoint.counters["resumed"] + 1 if checkpoint else 0
        with contextlib.ExitStack() as stack:
            environment = stack.enter_context(
                components.make_environment(experiment, resumed, run.warn)
            )
            if checkpoint is None and experiment.acts:
                check_budget(experiment)
            made = stack.enter_context(make(experiment, environment))
            if checkpoint is not None:
                saver.restore(checkpoint, made, run.warn)
            replay = made.replay
            watched = finite.MetricsWatch(made.learner, lambda line: run.monitor.line(line))

            def numbers() -> Numbers:
                return Numbers(len(replay), replay.observed_samples_per_insert, watched())

            loop = make_loop(experiment, run, made)
            max_size = replay.spec.max_size if experiment.acts else None
            said = remarks(experiment, environment)
            if experiment.acts:
                said += tuple(short_budget(experiment, replay.spec))
            run.begin(request, max_size, numbers, launch=kind, remarks=said)
            if made.devices.note:
                run.monitor.line(made.devices.note)
            return _Trainer(experiment, run, made, loop, kind, resumed).run()


class _Trainer:
    """Trains, evaluates and saves, each when it is due."""

    def __init__(
        self,
        experiment: Experiment,
        run: lifecycle.RunLifecycle,
        made: components.Components,
        loop: TrainingLoop,
        kind: str,
        resumed: int,
    ):
        """Begins or goes on.

        Args:
          resumed: how often it did.
        """
        self._experiment, self._run, self._parts = experiment, run, made
        self._loop, self._kind, self._resumed = loop, kind, resumed
        self._evaluations = run.before.get("evaluations", 0)
        kept = experiment.checkpointing
        store = Store(run.directory.checkpoints, kept.keep, address=kept.copies)
        self._saver = saver.Saver(experiment, store, made, self._loop.steps)
        self._best = BestPolicy(run.directory.best)

    def run(self) -> Result:
        """Goes on until the budget is spent and the policy judged.

        Raises:
          RunError: if something failed.
          Interrupted: if a signal came.
        """
        loop = self._loop
        try:
            self._train()
            self._run.stopped(loop.steps)
            if self._run.ending is None:
                self._evaluate(self._experiment.evaluation.final_episodes)
            self._run.stopped(loop.steps)
        except DivergedError as error:
            raise self._diverged(error) from None
        except CallbackError as error:
            raise self._failed(error) from error
        except (Interrupted, RunError):
            raise
        except (Exception, SystemExit) as error:  # An environment may have called sys.exit.
            raise self._failed(error) from error
        finally:
            self._saver.wait()
        replay = self._parts.replay
        pace = replay.spec.samples_per_insert, replay.observed_samples_per_insert
        actors = int(self._parts.actor is not None)
        devices = self._parts.devices.to_json()
        return self._run.finish(self._kind, self._counts(), pace, devices=devices, actors=actors)

    def _train(self) -> None:
        loop, run, experiment = self._loop, self._run, self._experiment
        budget, period = experiment.spent_at, experiment.evaluation_period
        evaluate_at = (loop.steps // period + 1) * period
        while loop.steps < budget and not run.stop.requested and run.ending is None:
            until = min(budget, evaluate_at, self._saver.next_step())
            start = time.perf_counter()
            loop.advance(until, run.monitor.next_time, run.stop)
            run.train_seconds += time.perf_counter() - start
            run.monitor.look(self._counts(), loop.finished, experiment.budget)
            self._tell(self._saver.take())
            if evaluate_at <= loop.steps < budget:
                self._evaluate(experiment.evaluation.episodes)
                evaluate_at = (loop.steps // period + 1) * period
            if self._saver.is_due(loop.steps):
                self._save()
        run.monitor.write_row(self._counts(), loop.finished)
        self._save_last()

    def _failed(self, error: BaseException) -> RunError:
        """The error to end with; what was learned until now is saved where that still works."""
        reason = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, ValueError | RunError):
            reason = f"{type(error).__name__}: {reason}"
        try:
            self._save_last()
            saved = f"a checkpoint was saved: `troupe resume {self._run.directory.path}`"
        except DivergedError as second:
            return self._diverged(second, f"; then: {reason}")
        except Exception as second:
            saved = f"no checkpoint could be saved after that ({type(second).__name__})"
        where = self._run.directory.logs / "main.log"
        message = f"failed at {self._at()}: {reason}; {saved}"
        return RunError(f"{message}; {where} says where.")

    def _diverged(self, error: DivergedError, then: str = "") -> DivergedError:
        """The error to end with where nothing that was learned is worth saving."""
        self._saver.wait()  # One that was begun before may be complete yet.
        paths = self._saver.store.paths()
        kept = f"{paths[-1]} is the last that is finite" if paths else "there is no checkpoint yet"
        return DivergedError(f"failed at {self._at()}: {error}{then}; {kept}.")

    def _at(self) -> str:
        return f"{self._loop.steps:,} {self._experiment.clock.words}"

    def _evaluate(self, episodes: int) -> None:
        """Evaluates and writes it down, unless it is stopped."""
        steps = self._loop.actor_steps
        learned = self._parts.learner.steps
        outcome = self._parts.evaluator.run(
            self._evaluations, episodes, steps, self._run.stop, learned, self._run.monitor.line
        )
        if outcome is not None:
            self._parts.evaluator.keep(self._best, self._evaluations, outcome)
            self._evaluations += 1
            self._run.monitor.evaluated(self._counts(), outcome.to_monitor())

    def _save(self) -> None:
        """Begins a checkpoint; waits for the one before."""
        self._run.monitor.sync()
        counters = {
            **self._counts(),
            "evaluations": self._evaluations,
            "resumed": self._resumed,
            # Those of actors in other launches, whose episodes are not to be seen again.
            "incarnations": self._run.before.get("incarnations", 0),
        }
        self._tell(self._saver.save(counters))

    def _save_last(self) -> None:
        """Saves, and sees to it that the checkpoint is complete, and where copies of it go."""
        self._save()
        self._tell(self._saver.take(None))
        self._saver.store.copied(None)

    def _tell(self, written: Written | None) -> None:
        """Tells callbacks of a checkpoint that is complete."""
        if written is not None:
            counts = {name: written.counters[name] for name in self._counts()}
            self._run.saved(written.path, counts)

    def _counts(self) -> dict[str, Any]:
        loop = self._loop
        return self._run.counts(loop.actor_steps, self._parts.learner.steps, loop.episodes)
