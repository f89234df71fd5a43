"""A run's numbers: rows of `metrics.jsonl`, and the same as TensorBoard event files."""

from __future__ import annotations

import json
import math
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..episodes import INFO
from ..errors import RequestError

Row = Mapping[str, Any]

COUNTS = ("actor_steps", "learner_steps", "episodes", "wall_seconds", "train_seconds")
"""What every row begins with, after its kind."""


class MetricsWriter:
    """Appends rows. A row has a `kind` ("train" or "evaluation"), the `COUNTS` and more numbers.

    The counts of an evaluation are those of its policy. Programs train on while it is played, so
    rows of training with later counts may stand before it; the rows of one kind are in order.

    Numbers that are not finite are written as null, and not at all to TensorBoard.
    """

    def __init__(
        self,
        path: pathlib.Path,
        *,
        clock: str = "actor_steps",
        steps: int = 0,
        evaluations: int = 0,
    ):
        """Opens a file to go on with. Rows of what a resumed run does again are dropped.

        Args:
          path: made where it is not there.
          clock: which of the `COUNTS` the run goes by.
          steps: of it, where the run goes on; 0: it begins.
          evaluations: how many it had behind it.
        """
        self._path, self._clock = path, clock
        self._open(steps, evaluations)

    def _open(self, steps: int, evaluations: int) -> None:
        path = self._path
        kept = _kept(path, self._clock, steps, evaluations) if steps and path.exists() else b""
        temporary = path.with_name(f".{path.name}")
        temporary.write_bytes(kept)
        os.replace(temporary, path)
        self._file = open(path, "ab")  # noqa: SIM115 - held until `close`.
        purge = steps + 1 if steps else None
        writer = _board_writer()
        self._board = writer(str(path.parent), purge_step=purge, max_queue=1000)

    def go_back(self, steps: int, evaluations: int) -> None:
        """Drops the rows of what is done again, as a writer that is made with these numbers."""
        self.close()
        self._open(steps, evaluations)

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Has TensorBoard compare runs by their settings (its page "HParams").

        Args:
          settings: texts and numbers by name.
        """
        from tensorboardX.summary import hparams

        curves = {"evaluation/mean": 0.0, "train/return": 0.0}
        plain = {
            name: value if isinstance(value, bool | str) else float(value)
            for name, value in settings.items()
        }
        for summary in hparams(plain, curves)[:2]:  # The third says that it has ended.
            self._board.file_writer.add_summary(summary)

    def write(self, row: Row) -> None:
        plain = {name: _finite(value) for name, value in row.items()}
        self._file.write(json.dumps(plain).encode() + b"\n")
        self._file.flush()
        for name, value in plain.items():
            if name not in ("kind", *COUNTS) and isinstance(value, int | float):
                # It would make an array of one element of a number, which numpy deprecates.
                scalar = np.asarray(value, np.float64)
                self._board.add_scalar(f"{row['kind']}/{name}", scalar, row[self._clock])

    def write_texts(self, texts: Sequence[str], steps: int) -> None:
        """Writes what episodes of an evaluation are to be read as, with the step of the clock: to
        logs/episodes.log, and as a text to TensorBoard."""
        logs = self._path.parent / "logs"
        logs.mkdir(exist_ok=True)
        with open(logs / "episodes.log", "a", encoding="utf-8") as file:
            file.writelines(f"{steps:,} {text}\n" for text in texts)
        # Indented, so that no character of it is taken for Markdown.
        self._board.add_text("evaluation/episodes", "\n".join(f"    {t}" for t in texts), steps)

    def sync(self) -> None:
        """Brings all rows to the disk."""
        os.fsync(self._file.fileno())

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self._board.close()


def _board_writer() -> Any:
    """Returns TensorBoard's writer, whose import costs a quarter of a second: only runs pay it.

    Where torch is installed it would be imported too, for seconds, to read tensors that nothing
    here writes. It counts as missing meanwhile, as tensorboardX allows.
    """
    hidden = {} if "torch" in sys.modules else {"torch": None}
    sys.modules.update(hidden)  # type: ignore[arg-type]
    try:
        from tensorboardX import SummaryWriter
    finally:
        for name in hidden:
            del sys.modules[name]
    return SummaryWriter


def read(path: pathlib.Path, kind: str | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a file, of one kind where it is given. A last line cut short is left out.

    Raises:
      RequestError: if a line is no row, naming it.
    """
    for _, row in _rows(path):
        if kind in (None, row["kind"]):
            yield row


def _rows(path: pathlib.Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each line and what it says, up to one that was cut short."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
                complete = {"kind", "actor_steps"} <= set(row)
            except (ValueError, TypeError):
                complete = False
            if not complete:
                raise RequestError(
                    f"{path} is damaged: line {number} is no row of metrics; without that line the "
                    "others can be read."
                )
            yield line, row


def _kept(path: pathlib.Path, clock: str, steps: int, evaluations: int) -> bytes:
    """The lines of a file whose steps and evaluations are not done again."""
    lines = []
    for line, row in _rows(path):
        judged = row["kind"] == "evaluation"
        if row[clock] <= steps and (evaluations > 0 or not judged):
            lines.append(line)
            evaluations -= judged
    return b"".join(lines)


def evaluations(path: pathlib.Path) -> list[dict[str, Any]]:
    """The evaluations in a file, as `result.json` holds them."""
    return [
        {
            "actor_steps": row["actor_steps"],
            "learner_steps": row["learner_steps"],
            "episodes": row["evaluated"],
            **{name: row[name] for name in ("mean", "std", "min", "max")},
            **{name: value for name, value in row.items() if name.startswith(INFO)},
        }
        for row in read(path, "evaluation")
    ]


def can_hold(value: Any) -> bool:
    """True if a row can hold a value: a number, a text, true, false or None."""
    return value is None or isinstance(value, str | bool | int | float | np.number | np.bool_)


def _finite(value: Any) -> Any:
    if isinstance(value, str | bool) or value is None:
        return value
    number = value if isinstance(value, int) else float(value)
    return number if math.isfinite(number) else None
