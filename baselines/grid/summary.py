"""Summarises the final returns of a grid's runs in lines."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np

from ...launch.files.directory import RunDirectory
from ...launch.specification import fields
from ..report.summary import estimate
from .request import GridRequest


def returns(request: GridRequest, out: pathlib.Path) -> dict[str, list[float]]:
    """Returns the final returns of the runs that are done, by setting in words."""
    found: dict[str, list[float]] = {}
    for run in request.runs():
        words = ", ".join(f"{name} {fields.text(one)}" for name, one in run.settings.items())
        result = RunDirectory(out / run.name).read_result()
        done = found.setdefault(words, [])
        if result is not None:
            done.append(result["evaluation"][-1]["mean"])
    return found


def table(found: dict[str, list[float]]) -> str:
    """Returns a line for each setting: the interquartile mean, its 95 % interval and the mean."""
    return "\n".join(_line(words, values) for words, values in found.items())


def _line(words: str, values: Sequence[float]) -> str:
    before = f"{words}: " if words else ""
    if not values:
        return f"{before}no run is done"
    one = estimate([np.asarray(values)])
    seeds = f"{len(values)} seed" + ("s" if len(values) > 1 else "")
    return (
        f"{before}return {one.mean:.1f} (interquartile mean; 95 %: {one.low:.1f} to "
        f"{one.high:.1f}), mean {np.mean(values):.1f} +- {np.std(values):.1f} over {seeds}"
    )
