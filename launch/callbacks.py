"""Code of the user's own that is told of a run while it goes on, in every kind of launch."""

from __future__ import annotations

import contextlib
import pathlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import RequestError, RunError, StopRun

if TYPE_CHECKING:
    from .files.result import Result

Row = dict[str, Any]

HOOKS = ("on_begin", "on_metrics", "on_evaluation", "on_checkpoint", "on_end")


class Callback:
    """Told of what happens in a run; inherit from it and override what is of interest.

    Its methods are called in the process that began the run, one after another, and hold the run up
    for as long as they take. One that raises `StopRun` ends the run as soon as it has saved a
    checkpoint. Any other error is told, its traceback is in `logs/main.log`, and the run goes on:
    unless `fatal` is true, when it ends the run.
    """

    fatal: bool = False
    """True if an error in it ends the run."""

    def on_begin(self, directory: pathlib.Path, config: Mapping[str, Any]) -> None:
        """A run begins, or goes on.

        Args:
          directory: of the run.
          config: what its `config.json` says.
        """

    def on_metrics(self, row: Row) -> None:
        """A row of training metrics, which is then written to `metrics.jsonl`.

        Numbers and texts that are added to it are written with it.
        """

    def on_evaluation(self, row: Row) -> None:
        """An evaluation has ended; its row, with `mean`, `std`, `min` and `max`, is then written.

        What is added to it is as in `on_metrics`.
        """

    def on_checkpoint(self, path: pathlib.Path, counts: Mapping[str, Any]) -> None:
        """A checkpoint was written; of several at once the newest is told.

        Args:
          path: its folder.
          counts: the run's, at about that time (`metrics.COUNTS`).
        """

    def on_end(self, result: Result | None) -> None:
        """The run has ended; None: it failed or was stopped by a signal."""


class CallbackError(RunError):
    """A callback that is fatal has failed."""


class StopAtTarget(Callback):
    """Ends a run at the first evaluation whose mean return is no lower than the target."""

    def __init__(self, target_return: float):
        self._target = target_return

    def on_evaluation(self, row: Row) -> None:
        if row["mean"] >= self._target:
            raise StopRun(
                f"the return of {row['mean']:.1f} has reached the target of {self._target:g}"
            )


class Callbacks:
    """All callbacks of one run.

    Attributes:
      ending: why one of them has asked the run to end; None: none has.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        say: Callable[[str], None],
        note: Callable[[str], None],
    ):
        """Calls nothing yet.

        Args:
          callbacks: in the order in which they are called.
          say: told what the user should know, a line at a time.
          note: told what belongs into the log alone.
        """
        self._callbacks, self._say, self._note = tuple(callbacks), say, note
        self._told: set[tuple[int, str]] = set()
        self.ending: str | None = None

    def call(self, hook: str, *arguments: Any) -> None:
        """Calls one hook of each.

        Raises:
          CallbackError: if one that is fatal fails.
          RequestError: if one says that the run cannot begin so.
        """
        for callback in self._callbacks:
            try:
                getattr(callback, hook)(*arguments)
            except StopRun as stop:
                self.ending = self.ending or str(stop) or f"{_name(callback)} asked for it"
            except RequestError:
                raise
            except Exception as error:
                self._failed(callback, hook, error)

    def _failed(self, callback: Callback, hook: str, error: Exception) -> None:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        message = f"the callback {_name(callback)} failed in {hook} ({reason})"
        first = (id(callback), hook) not in self._told
        self._told.add((id(callback), hook))
        if first:
            self._note("".join(traceback.format_exception(error)).rstrip())
        if getattr(callback, "fatal", False):
            raise CallbackError(f"{message}.") from error
        if first:
            self._say(f"warning: {message}; the run goes on, and logs/main.log has where")

    def end(self, result: Result | None) -> None:
        """Tells that the run has ended; where it failed, only its own error is raised."""
        if result is not None:
            self.call("on_end", result)
        else:
            with contextlib.suppress(CallbackError, RequestError):
                self.call("on_end", None)


def check(callbacks: Sequence[Any]) -> None:
    """Raises RequestError where something is no callback."""
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise RequestError(
            f"callbacks is {callbacks!r}; it must be a sequence of troupe.launch.Callback."
        )
    for callback in callbacks:
        missing = [hook for hook in HOOKS if not callable(getattr(callback, hook, None))]
        if missing or isinstance(callback, type):
            raise RequestError(
                f"{callback!r} is no callback: "
                + ("it is a class" if isinstance(callback, type) else f"it has no {missing[0]}")
                + "; make an instance of a class that inherits from troupe.launch.Callback."
            )


def _name(callback: Callback) -> str:
    return type(callback).__qualname__
