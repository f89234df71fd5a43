"""Telling how a run goes: one live line on a terminal, plain lines elsewhere, and a log file."""

from __future__ import annotations

import dataclasses
import datetime
import pathlib
import sys
import time
from typing import IO


@dataclasses.dataclass(frozen=True)
class Status:
    """Where a run is."""

    actor_steps: int | None
    """None: nobody acts, and the budget is in gradient steps."""
    budget: int
    learner_steps: int
    episode_return: float | None
    """Mean of the newest episodes; None before the first has ended."""
    actor_rate: float
    """Actor steps a second, since the last status."""
    learner_rate: float
    """Gradient steps a second, since the last status."""
    replay_fill: float | None
    """Items held, as a part of what it can hold; None: there is no replay to be filled."""
    seconds_left: float | None
    """Until the budget is spent at the present rate; None: cannot be said yet."""

    @property
    def done(self) -> int:
        """Of the budget."""
        return self.learner_steps if self.actor_steps is None else self.actor_steps

    def text(self) -> str:
        episode_return = "-" if self.episode_return is None else f"{self.episode_return:.1f}"
        left = "-:--" if self.seconds_left is None else duration(self.seconds_left)
        parts = [f"{self.done / self.budget:4.0%}"]
        if self.actor_steps is not None:
            parts.append(f"return {episode_return}")
            parts.append(f"{self.actor_steps:,} steps at {self.actor_rate:,.0f}/s")
        parts.append(f"{self.learner_steps:,} gradient steps at {self.learner_rate:,.0f}/s")
        if self.replay_fill is not None:
            parts.append(f"replay {self.replay_fill:.0%}")
        return "  ".join([*parts, f"{left} left"])


def duration(seconds: float) -> str:
    """As 1:02:03, or 2:03."""
    text = str(datetime.timedelta(seconds=round(seconds)))
    return text[2:].removeprefix("0") if text.startswith("0:") else text


class Reporter:
    """Where a run's words go; this one keeps them to itself."""

    def status(self, status: Status) -> None:
        """Where the run is; called about twice a second."""

    def line(self, text: str) -> None:
        """Something that happened, to be kept."""

    def close(self) -> None:
        """Nothing more is said."""


class Plain(Reporter):
    """Lines on a stream that is no terminal: what happened, and where the run is now and then."""

    def __init__(self, stream: IO[str], seconds: float = 10.0):
        self._stream = stream
        self._seconds = seconds
        self._last = time.monotonic()

    def status(self, status: Status) -> None:
        now = time.monotonic()
        if now - self._last >= self._seconds:
            self._last = now
            self.line(status.text())

    def line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class Live(Reporter):
    """One line of a terminal, written over; what happened stands above it."""

    def __init__(self, stream: IO[str]):
        # Only a terminal pays for the import.
        from rich import console, live

        self._live = live.Live(
            console=console.Console(file=stream, highlight=False), auto_refresh=False
        )
        self._live.start()

    def status(self, status: Status) -> None:
        from rich import progress_bar, table

        grid = table.Table.grid(padding=(0, 1))
        bar = progress_bar.ProgressBar(status.budget, status.done, width=20)
        grid.add_row(bar, status.text())
        self._live.update(grid, refresh=True)

    def line(self, text: str) -> None:
        self._live.console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        self._live.update("", refresh=True)
        self._live.stop()


class Logged(Reporter):
    """Another reporter, whose lines also go to a file with the time before them."""

    def __init__(self, inner: Reporter, path: pathlib.Path):
        self._inner = inner
        self._file = open(path, "a")  # noqa: SIM115 - held until `close`.

    def status(self, status: Status) -> None:
        self._inner.status(status)

    def line(self, text: str) -> None:
        self._inner.line(text)
        self.note(text)

    def note(self, text: str) -> None:
        """A line for the file alone: what the other reporter is told in another way."""
        now = datetime.datetime.now().isoformat(sep=" ", timespec="seconds")
        print(now, text, file=self._file, flush=True)

    def __enter__(self) -> Logged:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; the other reporter belongs to whoever made it."""
        self._file.close()


def for_stream(stream: IO[str] | None = None) -> Reporter:
    """The live line where the stream (standard output) is a terminal, plain lines elsewhere."""
    stream = stream or sys.stdout
    return Live(stream) if stream.isatty() else Plain(stream)


def for_stderr() -> Reporter:
    """Plain lines on standard error, for commands whose output is an answer."""
    return Plain(sys.stderr)
