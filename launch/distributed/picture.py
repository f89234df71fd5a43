"""The picture of a program: its roles and who calls whom, read off the program itself."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import launchpad as lp

from ..errors import RequestError

_COLUMNS: Mapping[str, tuple[float, float]] = {
    # What collects stands to the left, what is shared in the middle, what learns to the right; the
    # variables a little beside the arrow from replay to counter.
    "actor": (0.0, 1.0),
    "inference": (0.0, 2.0),
    "evaluator": (0.0, 0.0),
    "replay": (1.0, 2.0),
    "variables": (1.3, 1.0),
    "counter": (1.0, 0.0),
    "learner": (2.0, 1.5),
}


def edges(program: lp.Program) -> list[tuple[str, str]]:
    """Pairs (caller, called) of labels, each once, in the order of the program."""
    owners = {
        id(handle): label
        for label, nodes in program.groups.items()
        for node in nodes
        for handle in node._created_handles
    }
    found = dict.fromkeys(
        (label, owners[id(handle)])
        for label, nodes in program.groups.items()
        for node in nodes
        for handle in node.input_handles
        if id(handle) in owners
    )
    return list(found)


def draw(program: lp.Program, path: str | os.PathLike[str]) -> pathlib.Path:
    """Draws a program: a box for every label, an arrow from whoever calls to whoever answers.

    Args:
      program: any program of Launchpad.
      path: of the picture; its ending says the format.

    Raises:
      RequestError: if it cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    places = _places(program)
    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.axis("off")
    xs, ys = zip(*places.values(), strict=True)
    axes.set_xlim(min(xs) - 0.4, max(xs) + 0.4)
    axes.set_ylim(min(ys) - 0.4, max(ys) + 0.4)
    boxes: dict[str, Any] = {}
    for label, nodes in program.groups.items():
        served = bool(nodes[0].addresses)
        text = label if len(nodes) == 1 else f"{label} \N{MULTIPLICATION SIGN} {len(nodes)}"
        boxes[label] = axes.text(
            *places[label],
            text,
            ha="center",
            va="center",
            fontsize=14,
            zorder=3,
            bbox={
                "boxstyle": "round,pad=0.6" if not served else "square,pad=0.6",
                "facecolor": "#dbe9f6" if served else "#fbe6c8",
                "edgecolor": "#444444",
            },
        )
    for caller, called in edges(program):
        axes.annotate(
            "",
            xy=places[called],
            xytext=places[caller],
            arrowprops={
                "arrowstyle": "-|>",
                "color": "#444444",
                "patchA": boxes[caller].get_bbox_patch(),
                "patchB": boxes[called].get_bbox_patch(),
                "shrinkA": 2,
                "shrinkB": 2,
                "connectionstyle": "arc3,rad=0.08",
            },
        )
    figure.supxlabel("An arrow points from whoever calls. Blue roles serve, yellow ones work.")
    target = pathlib.Path(path)
    try:
        figure.savefig(target, dpi=120)
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot write {target}: {error}.") from error
    return target


def _places(program: lp.Program) -> dict[str, tuple[float, float]]:
    """Where each label stands; those that are not of this package below all others."""
    known = {label: _COLUMNS[label] for label in program.groups if label in _COLUMNS}
    others = [label for label in program.groups if label not in _COLUMNS]
    return known | {label: (float(i % 3), -1.0 - i // 3) for i, label in enumerate(others)}
