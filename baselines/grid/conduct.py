"""Runs all that a grid asks for, or what is left of it."""

from __future__ import annotations

import pathlib
import shutil
import time
from collections.abc import Sequence

from ...launch import signals
from ...launch.errors import Interrupted, RunError
from ...launch.files.directory import RunDirectory
from ...launch.logging.report import Reporter
from .. import together
from ..children import Child
from ..together import Asked
from .request import GridRequest, GridRun

_LOOK_SECONDS = 0.1


def check(request: GridRequest) -> None:
    """Raises ValueError where a run cannot begin."""
    first, *others = request.runs()
    together.check(first.recipe)
    for run in others:
        run.recipe.experiment()


def conduct(request: GridRequest, out: pathlib.Path, reporter: Reporter) -> None:
    """Runs the runs of a grid that are not done, each in its directory within that of the grid.

    One that fails leaves the others.

    Args:
      request: what is asked.
      out: directory of the grid, which holds the request.
      reporter: where words go.

    Raises:
      RequestError: if the runs cannot be as asked.
      RunError: if some failed, naming them and the reason of the first.
      Interrupted: if a signal came; checkpoints were saved.
    """
    left = [
        Asked(run.recipe, out / run.name, _prepared(out / run.name), run.name)
        for run in request.runs()
        if not is_done(run, out)
    ]
    if request.parallel == 1:
        errors = _here(left, reporter)
    else:
        errors = _in_processes(left, request.parallel, out / "logs", reporter)
    for error in errors.values():
        if isinstance(error, Interrupted):
            raise Interrupted(
                error.signal_number, f"stopped; go on with `troupe resume {out}`."
            ) from error
    if errors:
        name, error = next(iter(errors.items()))
        total = len(request.runs())
        # What all of them say was wrong with what was asked.
        if len(errors) == total and len(set(map(str, errors.values()))) == 1:
            raise error
        raise RunError(
            f"{len(errors)} of {total} runs failed: {', '.join(errors)}; {name}: {error}"
        ) from error


def is_done(run: GridRun, out: pathlib.Path) -> bool:
    """True if a run has spent its budget or ended early, as asked."""
    result = RunDirectory(out / run.name).read_result()
    if result is None:
        return False
    experiment = run.recipe.experiment()
    spent: bool = result[experiment.clock.name] >= experiment.spent_at
    return spent or result.get("ended") is not None


def _prepared(path: pathlib.Path) -> bool:
    """True if a run goes on from a checkpoint; what is left of one that has none is removed."""
    directory = RunDirectory(path)
    if any(directory.checkpoints.glob("checkpoint-*")):
        return True
    if directory.config.exists():
        directory.check_free()
        shutil.rmtree(path)
    return False


def _here(left: Sequence[Asked], reporter: Reporter) -> dict[str, Exception]:
    if not left:
        return {}
    found = together.run(left, reporter)
    return {
        asked.name: one
        for asked, one in zip(left, found, strict=True)
        if isinstance(one, Exception)
    }


def _in_processes(
    left: Sequence[Asked], parallel: int, logs: pathlib.Path, reporter: Reporter
) -> dict[str, Exception]:
    """Runs them in so many processes at a time; compiled ones as one program in each."""
    compiled = bool(left) and left[0].recipe.launch == "compiled"
    shares = [list(left[i::parallel]) for i in range(parallel)] if compiled else [[a] for a in left]
    waiting = [share for share in shares if share]
    running: list[tuple[list[Asked], Child]] = []
    errors: dict[str, Exception] = {}
    stop = signals.Stop()
    with signals.caught(stop, reporter.line):
        try:
            while (waiting or running) and not stop.requested:
                while waiting and len(running) < parallel:
                    share = waiting.pop(0)
                    name = share[0].name.replace("/", "-")
                    running.append((share, Child(share, logs / f"{name}.log")))
                    reporter.line(f"begun: {', '.join(one.name for one in share)}")
                for share, child in list(running):
                    if child.ended:
                        running.remove((share, child))
                        errors |= _failed(share, child)
                        child.wait()
                        reporter.line(f"ended: {', '.join(one.name for one in share)}")
                time.sleep(_LOOK_SECONDS)
        finally:
            for _, child in running:
                child.stop()
            for _, child in running:
                child.wait()
    if stop.signal_number is not None:
        errors[""] = Interrupted(stop.signal_number, "")
    return errors


def _failed(share: Sequence[Asked], child: Child) -> dict[str, Exception]:
    """Returns the errors of a process whose runs did not all come to a result."""
    if child.error is None:
        return {}
    error = RunError(child.error)
    return {one.name: error for one in share if RunDirectory(one.out).read_result() is None}
