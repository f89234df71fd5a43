"""The results of a sweep: `sweep.json`, `best.json` and a table."""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from ...launch.files.result import versions
from ...launch.specification import fields
from . import request as requests
from .request import SweepRequest
from .study import Tried

BEST = "best.json"


def best(tried: Sequence[Tried]) -> Tried | None:
    """The complete trial with the highest return, the first of equals; None: there is none yet."""
    complete = [(one.value, -one.number, one) for one in tried if one.state == "complete"]
    return max(complete)[-1] if complete else None


def to_json(request: SweepRequest, tried: Sequence[Tried]) -> dict[str, Any]:
    """All of it, so that a sweep can go on from it and be read without Optuna."""
    found = best(tried)
    seeds = range(request.recipe.seed, request.recipe.seed + request.seeds)
    return {
        "request": request.to_json(),
        "trials": [
            {
                "trial": one.number,
                "state": one.state,
                "return": _finite(one.value),
                "settings": {name: one.settings.get(name) for name in request.space},
                "evaluations": [_finite(value) for value in one.evaluations.values()],
                "runs": [f"runs/{one.number:03d}-{seed}" for seed in seeds],
                **({"error": one.error} if one.error else {}),
            }
            for one in tried
        ],
        "best": None
        if found is None
        else {
            "trial": found.number,
            "return": found.value,
            "config": request.config(found.settings),
        },
        "versions": versions(),
    }


def write(folder: pathlib.Path, request: SweepRequest, tried: Sequence[Tried]) -> None:
    """Writes `sweep.json`, and `best.json` as `--config-file` takes it."""
    content = to_json(request, tried)
    _write(folder / requests.FILE, content)
    if content["best"] is not None:
        _write(folder / BEST, content["best"]["config"])


def table(request: SweepRequest, tried: Sequence[Tried]) -> str:
    """The trials, the best first, under their titles."""
    order = {"complete": 0, "pruned": 1, "failed": 2, "running": 3}
    ranked = sorted(tried, key=lambda one: (order[one.state], -(one.value or 0.0), one.number))
    titles = ["trial", "return", "evaluations", *request.space, ""]
    rows = [titles]
    for one in ranked:
        value = "-" if one.value is None else f"{one.value:.1f}"
        settings = [number(one.settings.get(name)) for name in request.space]
        note = "" if one.state == "complete" else one.state + (f": {one.error}" * bool(one.error))
        rows.append([str(one.number), value, str(len(one.evaluations)), *settings, note])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines)


def number(value: Any) -> str:
    """A setting, short."""
    return f"{value:.3g}" if isinstance(value, float) else fields.text(value)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _write(path: pathlib.Path, content: Any) -> None:
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(temporary, path)
