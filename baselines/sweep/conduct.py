"""Conducts a sweep: proposes, runs, prunes and remembers until all trials are done."""

from __future__ import annotations

import contextlib
import fcntl
import pathlib
import time
from collections.abc import Iterator

from ...launch import extras, signals
from ...launch.errors import Interrupted, RequestError, RunError
from ...launch.logging import report
from .. import together
from . import chart, outcome
from . import request as requests
from .attempt import Attempt
from .request import SweepRequest
from .study import FILE as study_file
from .study import Proposal, Study, Tried

_LOOK_SECONDS = 0.1
_HOPELESS = 3
"""So many failures from the start on end a sweep."""


def sweep(
    request: SweepRequest,
    out: pathlib.Path,
    *,
    resume: bool = False,
    workers: int = 1,
    reporter: report.Reporter | None = None,
) -> list[Tried]:
    """Runs a sweep, or what is left of one.

    Each trial is one or several ordinary runs, in `out`/runs, each in a process of its own. Beside
    them lie `sweep.json`, `best.json`, `sweep.png`, logs and the study.

    Args:
      request: what is asked.
      out: new or empty; with `resume` the directory of an earlier sweep, whose trials are kept.
        Those that were running are tried again, from their checkpoints where they have some.
      resume: go on.
      workers: trials that run at the same time.
      reporter: where words go.

    Returns:
      All trials, by index.

    Raises:
      RequestError: if the sweep cannot begin as asked.
      RunError: if all its trials failed.
      Interrupted: if a signal stopped it.
    """
    extras.require("optuna", "optuna", "a sweep")
    reporter = reporter or report.Reporter()
    # The check fails once, and not in every trial.
    experiment = together.check(request.recipe)
    # One after each full period, and one at the end.
    evaluations = request.seeds * ((experiment.budget - 1) // experiment.evaluation_period + 1)
    stop = signals.Stop()
    with _taken(out, resume), signals.caught(stop, reporter.line):
        if resume and not (out / study_file).exists():
            raise RequestError(f"{out} has lost its study, {study_file}; begin a new sweep.")
        study = Study(out, request, evaluations)
        again = study.recover()
        usual = request.usual()
        if not resume and usual is not None:
            study.begin(usual)
        _tell_start(reporter, request, study, again, out)
        outcome.write(out, request, study.tried())
        running = _Running(request, study, evaluations, out, workers, reporter)
        try:
            while running.look() and not stop.requested:
                time.sleep(_LOOK_SECONDS)
        finally:
            running.stop()
            tried = study.tried()
            outcome.write(out, request, tried)
        chart.draw(request, tried, study.importances(), out / "sweep.png")
    if stop.signal_number is not None:
        raise Interrupted(
            stop.signal_number,
            f"stopped at trial {study.begun()} of {request.trials}; "
            f"go on with `troupe sweep --resume {out}`.",
        )
    return tried


class _Running:
    """The trials that run."""

    def __init__(
        self,
        request: SweepRequest,
        study: Study,
        evaluations: int,
        out: pathlib.Path,
        workers: int,
        reporter: report.Reporter,
    ):
        """Begins with none.

        Args:
          request: what is asked.
          study: proposes and judges.
          evaluations: of a trial, from its first run to its last.
          out: directory of the sweep.
          workers: trials that run at the same time.
          reporter: where words go.
        """
        self._request, self._study, self._out = request, study, out
        self._evaluations = evaluations
        self._workers, self._reporter = workers, reporter
        self._attempts: list[Attempt] = []

    def look(self) -> bool:
        """Starts trials on idle workers and takes new results; returns True if there is more to do.

        Raises:
          RunError: if all trials so far have failed.
        """
        more = True
        while len(self._attempts) < self._workers:
            proposal = self._study.propose(self._request.trials)
            if proposal is None:
                more = False
                break
            self._say(proposal, self._words(proposal))
            recipe, number = self._request.recipe, self._request.seeds
            self._attempts.append(Attempt(self._out, recipe, number, proposal))
        for attempt in list(self._attempts):
            if self._take(attempt):
                self._attempts.remove(attempt)
                self._tell(attempt)
        return more or bool(self._attempts)

    def stop(self) -> None:
        """Has all runs save a checkpoint and end."""
        for attempt in self._attempts:
            attempt.stop()
        for attempt in self._attempts:
            attempt.wait()

    def _take(self, attempt: Attempt) -> bool:
        """Tells the study the new results of a trial; returns True if the trial is done."""
        proposal = attempt.proposal
        for step, value in attempt.news():
            worse = self._study.report(proposal, step, value)
            if worse and step < self._evaluations:
                attempt.stop()
                attempt.wait()
                of = f"{step} of {self._evaluations} evaluations"
                self._study.prune(proposal)
                self._say(
                    proposal,
                    f"pruned after {of}, at {value:.1f}",
                )
                return True
        if attempt.value is not None:
            self._study.complete(proposal, attempt.value)
            self._say(proposal, f"return {attempt.value:.1f}")
        elif attempt.error is not None:
            self._study.fail(proposal, attempt.error)
            self._say(proposal, f"failed: {attempt.error}")
        return attempt.ended

    def _tell(self, attempt: Attempt) -> None:
        tried = self._study.tried()
        outcome.write(self._out, self._request, tried)
        if attempt.error is None:
            return
        failed = [one for one in tried if one.state == "failed"]
        others = [one for one in tried if one.state not in ("failed", "running")]
        if not others and len(failed) >= min(_HOPELESS, self._request.trials):
            raise RunError(
                f"all {len(failed)} trials have failed, the last one: {attempt.error} "
                f"(see {self._out / 'logs'})"
            )

    def _words(self, proposal: Proposal) -> str:
        settings = ", ".join(
            f"{name} {outcome.number(value)}" for name, value in proposal.settings.items()
        )
        return f"of {self._request.trials}: {settings}"

    def _say(self, proposal: Proposal, text: str) -> None:
        colon = "" if text.startswith("of ") else ":"
        self._reporter.line(f"trial {proposal.number}{colon} {text}")


def _tell_start(
    reporter: report.Reporter,
    request: SweepRequest,
    study: Study,
    again: list[int],
    out: pathlib.Path,
) -> None:
    what = f"{request.recipe.agent} on {request.recipe.env}, {request.trials} trials of "
    what += ", ".join(f"{name} in {one}" for name, one in request.space.items())
    begun = study.begun()
    where = f"goes on in {out} after {begun - len(again)} trials" if begun else f"in {out}"
    redone = f" (again: {', '.join(map(str, again))})" if again else ""
    reporter.line(f"{what}; {where}{redone}")


@contextlib.contextmanager
def _taken(out: pathlib.Path, resume: bool) -> Iterator[None]:
    """Keeps the directory to this sweep while it lasts.

    Raises:
      RequestError: if it is not empty, another sweep has it, or it cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            out.mkdir(parents=True, exist_ok=True)
            taken = sorted(one.name for one in out.iterdir() if one.name != ".lock")
            lock = stack.enter_context(open(out / ".lock", "a"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RequestError(f"another sweep is writing into {out}; wait for it.") from None
        except OSError as error:
            raise RequestError(
                f"cannot write into {out}: {error.strerror or error}; name another with --out."
            ) from error
        if taken and not resume:
            advice = ""
            if (out / requests.FILE).exists():
                advice = f"go on with `troupe sweep --resume {out}` or "
            raise RequestError(
                f"{out} is not empty (it holds {taken[0]}); {advice}name another with --out."
            )
        yield
