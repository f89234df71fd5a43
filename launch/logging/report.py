"""Telling how a run goes: one live line on a terminal, plain lines elsewhere, and a log file."""

from __future__ import annotations

import dataclasses
import datetime
import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import IO, Any

_BAR, _LEAST_BAR = 20, 6
"""Columns of the bar of a live line, where there is room."""


@dataclasses.dataclass(frozen=True)
class Status:
    """The progress of a run."""

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
        """Steps of the budget that are done."""
        return self.learner_steps if self.actor_steps is None else self.actor_steps

    @property
    def part(self) -> float:
        """Fraction of the budget that is spent."""
        return self.done / self.budget

    def text(self, width: int | None = None) -> str:
        """In words; in so few that they fit a line of that many columns."""
        episode_return = "-" if self.episode_return is None else f"{self.episode_return:.1f}"
        left = "-:--" if self.seconds_left is None else duration(self.seconds_left)
        # Each in full and in few letters; what can be done without has the higher number.
        words: list[tuple[int, str, str]] = [(0, f"{self.part:4.0%}", "")]
        if self.actor_steps is not None:
            words.append((0, f"return {episode_return}", ""))
            full = f"{self.actor_steps:,} steps at {self.actor_rate:,.0f}/s"
            brief = f"{short(self.actor_steps)} steps {short(self.actor_rate)}/s"
            words.append((2, full, brief))
        full = f"{self.learner_steps:,} gradient steps at {self.learner_rate:,.0f}/s"
        words.append((3, full, f"learner {short(self.learner_rate)}/s"))
        if self.replay_fill is not None:
            words.append((4, f"replay {self.replay_fill:.0%}", ""))
        words.append((1, f"{left} left", ""))
        line = "  ".join(full for _, full, _ in words)
        while width is not None and len(line) > width:
            line = "  ".join(brief or full for _, full, brief in words)
            if len(words) == 1:
                return line[:width]
            words.remove(max(words))
        return line


@dataclasses.dataclass(frozen=True)
class Starting:
    """The roles that a run waits for before its first step."""

    roles: Sequence[str]
    """Names of those that are not at work yet; none: all are, and the first step is awaited."""
    seconds: float
    """Since the start."""

    part = None
    """There is nothing to be a part of yet."""

    def text(self, width: int | None = None) -> str:
        """In words; in so few that they fit a line of that many columns."""
        since = f"({duration(self.seconds)})"
        if not self.roles:
            return f"all roles are at work, waiting for the first steps {since}"[:width]
        whole = f"starting {', '.join(self.roles)} {since}"
        if width is None or len(whole) <= width:
            return whole
        return f"starting {len(self.roles)} roles {since}"[:width]


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """What an evaluation of a run came to."""

    steps: int
    """Of the run's clock."""
    clock: str
    """In words: actor steps, or gradient steps."""
    mean: float
    """Of the returns."""
    std: float
    episodes: int
    more: str = ""
    """Other numbers of the episodes, in words."""

    def text(self) -> str:
        """In words."""
        return (
            f"evaluation at {self.steps:,} {self.clock}: return {self.mean:.1f} +- {self.std:.1f} "
            f"over {self.episodes} episodes{self.more}"
        )


def short(number: float) -> str:
    """A number in few letters: 950, 12.5k, 3.2M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= max(size, 1e4):
            return f"{number / size:.{int(number < 100 * size)}f}{letter}"
    return f"{number:.0f}"


def duration(seconds: float) -> str:
    """Formats a duration as 1:02:03, or 2:03."""
    text = str(datetime.timedelta(seconds=round(seconds)))
    return text[2:].removeprefix("0") if text.startswith("0:") else text


class Reporter:
    """Reports the progress and the events of a run; this one reports nothing."""

    def status(self, status: Status | Starting) -> None:
        """Reports the progress of the run; called about twice a second."""

    def line(self, text: str) -> None:
        """Reports an event, to be kept."""

    def evaluated(self, evaluation: Evaluated) -> None:
        """Reports an evaluation; a line, unless a reporter does otherwise."""
        self.line(evaluation.text())

    def close(self) -> None:
        """Ends the reports: no others follow."""


class Plain(Reporter):
    """Lines on a stream that is no terminal: all events, and now and then the progress."""

    def __init__(self, stream: IO[str] | None, seconds: float = 10.0):
        self._stream = stream
        self._seconds = seconds
        self._last = time.monotonic()

    def status(self, status: Status | Starting) -> None:
        now = time.monotonic()
        if now - self._last >= self._seconds:
            self._last = now
            self.line(status.text())

    def line(self, text: str) -> None:
        try:
            print(text, file=self._stream, flush=True)
        except OSError:  # Whoever read it has left, or its disk is full: the run goes on unheard.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, (self._stream or sys.stdout).fileno())
            os.close(nowhere)


class Live(Reporter):
    """One line of a terminal, written over; events stand above it."""

    def __init__(self, stream: IO[str]):
        # Only a terminal pays for the import.
        from rich import console, live

        self._live = live.Live(
            console=console.Console(file=stream, highlight=False), auto_refresh=False
        )
        self._live.start()

    def status(self, status: Status | Starting) -> None:
        from rich import progress_bar, table, text

        columns = self._live.console.width - 1  # The last one makes some terminals wrap.
        words = status.text(columns)
        bar = min(_BAR, columns - len(words) - 1)
        grid = table.Table.grid(padding=(0, 1))
        shown: list[Any] = [text.Text(words, no_wrap=True)]
        if status.part is not None and bar >= _LEAST_BAR:
            shown.insert(0, progress_bar.ProgressBar(1.0, min(status.part, 1.0), width=bar))
        grid.add_row(*shown)
        self._live.update(grid, refresh=True)

    def line(self, text: str) -> None:
        self._live.console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        self._live.update("", refresh=True)
        self._live.stop()


class Logged(Reporter):
    """Passes lines to another reporter, and writes them to a file with the time before them."""

    def __init__(self, inner: Reporter, path: pathlib.Path):
        self._inner = inner
        self._file = open(path, "a")  # noqa: SIM115 - held until `close`.

    def status(self, status: Status | Starting) -> None:
        self._inner.status(status)

    def line(self, text: str) -> None:
        self._inner.line(text)
        self.note(text)

    def evaluated(self, evaluation: Evaluated) -> None:
        self._inner.evaluated(evaluation)
        self.note(evaluation.text())

    def note(self, text: str) -> None:
        """Writes a line to the file alone; the other reporter shows the event otherwise."""
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
    return Live(stream) if stream is not None and stream.isatty() else Plain(stream)


def for_stderr() -> Reporter:
    """Plain lines on standard error, for commands whose output is an answer."""
    return Plain(sys.stderr)
