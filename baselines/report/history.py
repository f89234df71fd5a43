"""The history of the ledger: what each agent came to, commit by commit."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...launch.errors import RequestError
from ..returns import answers, ledger
from ..returns.answers import KeptAnswers
from ..returns.ledger import LedgerRow
from . import figures, page
from .summary import estimate

_NAME = "history.md"
_METRICS = {"final": "final return", "area": "area under the curve over its length"}


def write(rows: str | os.PathLike[str], folder: str | os.PathLike[str]) -> pathlib.Path:
    """Writes the page of a ledger and its picture.

    Args:
      rows: folder of the ledger; answers of comparisons lie in `verdicts` beside it.
      folder: of the page; made where it is not there.

    Returns:
      The file of the page.

    Raises:
      RequestError: if there are no rows, one is damaged, or the folder cannot be written.
    """
    found = {path.stem: ledger.read(path) for path in sorted(pathlib.Path(rows).glob("*.jsonl"))}
    if not any(found.values()):
        raise RequestError(f"there is no ledger in {rows}: it holds no rows.")
    path = pathlib.Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        figures.draw_panels(found, _panel, path / "history.png", caption=_CAPTION)
        kept = answers.read(pathlib.Path(rows).parent / answers.FOLDER.name)
        (path / _NAME).write_text("\n".join([*_lines(found), *_answers(kept)]) + "\n")
    except OSError as error:
        reason = error.strerror or error
        raise RequestError(f"cannot write into {path}: {reason}; name another --out.") from error
    return path / _NAME


_CAPTION = "lines: interquartile mean; bars: its 95 % interval; dots: each seed"


def _panel(axes: Any, rows: Sequence[LedgerRow]) -> None:
    places = np.arange(len(rows))
    for metric, color in zip(_METRICS, ("C0", "C1"), strict=True):
        values = [_values(row, metric) for row in rows]
        means = [estimate([one]) for one in values]
        middle = np.array([one.mean for one in means])
        ends = np.array([[one.mean - one.low, one.high - one.mean] for one in means]).T
        axes.errorbar(places, middle, ends, color=color, capsize=3, marker="o", label=metric)
        for place, one in zip(places, values, strict=True):
            axes.plot([place] * len(one), one, ".", color=color, ms=3, alpha=0.4)
    axes.set_xticks(places, [row.commit for row in rows], rotation=30, fontsize=7)
    axes.set_xlim(-0.5, len(rows) - 0.5)
    axes.set_ylabel("return")
    axes.legend(frameon=False, fontsize=8)


def _lines(found: Mapping[str, Sequence[LedgerRow]]) -> Iterator[str]:
    yield from ("# Returns by commit", "", "![Returns by commit](history.png)")
    for rows in found.values():
        first = rows[0]
        yield from ("", f"## {first.agent} on {first.env}, {first.launch}", "")
        yield from page.table([_cells(row) for row in rows])


def _cells(row: LedgerRow) -> dict[str, str]:
    cells = {"commit": row.commit, "seeds": str(len(row.seeds))}
    for metric, words in _METRICS.items():
        one = estimate([_values(row, metric)])
        cells[words] = f"{one.mean:.4g} ({one.low:.4g} to {one.high:.4g})"
    cells["seconds of training"] = f"{np.median(_values(row, 'seconds')):.0f}"
    cells["jax"] = row.versions.get("jax", "")
    return cells


def _answers(kept: Sequence[KeptAnswers]) -> Iterator[str]:
    """Tables of whether returns are equal at several scales."""
    for one in kept:
        rule = one.outcome["rule"]
        yield from ("", f"## {one.agent} on {one.env}, compared with {one.first}", "")
        yield (
            f"The margin is {rule['margin']:.4g} of a range of {rule['span']:.4g}; commit "
            f"{', '.join(one.commits)}, jax {one.versions.get('jax', '')}."
        )
        yield ""
        yield from page.table([_answer(*each) for each in one.outcome["verdicts"].items()])
        yield from ("", "```", one.command, "```")


def _answer(scale: str, verdict: Mapping[str, Any]) -> dict[str, str]:
    cells = {"scale": f"`{scale}`", "answer": verdict["answer"], "seeds": str(verdict["seeds"])}
    for metric, words in _METRICS.items():
        one = verdict["metrics"][metric]
        cells[f"{words}, difference"] = (
            f"{one['difference']:+.4g} ({one['low']:+.4g} to {one['high']:+.4g})"
        )
    return cells


def _values(row: LedgerRow, metric: str) -> np.ndarray:
    return np.array([getattr(one, metric) for one in row.seeds.values()])
