"""The picture of a deployment: its roles, and who calls whom."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

from ..errors import RequestError
from .deployment import Deployment

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


def draw(deployment: Deployment, path: str | os.PathLike[str]) -> pathlib.Path:
    """Draws a box for every label, and an arrow from whoever calls to whoever answers.

    Args:
      deployment: whose roles they are.
      path: of the picture; its ending says the format.

    Raises:
      RequestError: if it cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = deployment.groups()
    places = {label: _COLUMNS[label] for label in groups}
    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.axis("off")
    xs, ys = zip(*places.values(), strict=True)
    axes.set_xlim(min(xs) - 0.4, max(xs) + 0.4)
    axes.set_ylim(min(ys) - 0.4, max(ys) + 0.4)
    boxes: dict[str, Any] = {}
    for label, plans in groups.items():
        served = plans[0].threads > 0 or plans[0].serves_replay
        text = label if len(plans) == 1 else f"{label} \N{MULTIPLICATION SIGN} {len(plans)}"
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
    for caller, called in deployment.edges():
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
