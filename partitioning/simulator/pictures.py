"""Pictures of a plan: memory over time, time by kind of work, one bar per tactic."""

from __future__ import annotations

import itertools
import os
import pathlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from .simulate import amount

_LETTERS, _END = 36, 22
#: An axis whose values differ by more than this factor is broken, or logarithmic.
_BROKEN = 3.0
_COLOURS = {
    "argument": "#9db4c0",
    "output": "#5c6b73",
    "temporary": "#e07a5f",
    "compute": "#3d5a80",
    "exposed": "#ee6c4d",
    "hidden": "#f2cc8f",
}


def save_plan(plan: Any, path: str | os.PathLike[str]) -> None:
    """Draws a plan into a file; the ending of its name gives the format.

    Raises:
      ImportError: matplotlib is not installed.
      ValueError: if the file cannot be written, or its ending is that of no picture.
    """
    write(plan_figure(plan), path)


def blank(width: float, height: float, **options: Any) -> Any:
    """A matplotlib figure with nothing on it, so many inches wide and high.

    Raises:
      ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install matplotlib") from error
    return Figure(figsize=(width, height), **options)


def write(figure: Any, path: str | os.PathLike[str]) -> None:
    """Writes a figure into a file; the ending of its name gives the format.

    Raises:
      ValueError: if the file cannot be written, or its ending is that of no picture.
    """
    try:
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot write the picture {os.fspath(path)}: {reason}") from error


def plan_figure(plan: Any) -> Any:
    """A matplotlib figure with four panels: memory and time of the last step, and of every
    tactic.
    """
    figure = blank(13, 9, layout="constrained")
    cost = plan.steps[-1].simulation
    # Rows apart: the long names in one would narrow the panels of the other.
    above, below = figure.subfigures(2, 1)
    memory, owners = above.subplots(1, 2)
    kinds, steps = below.subplots(1, 2)
    draw_memory(memory, cost)
    draw_owners(owners, cost)
    draw_kinds(kinds, cost)
    draw_steps(steps, plan)
    figure.suptitle(f"mesh {plan.mesh} on {cost.device.name}, one device")
    return figure


def draw_memory(axes: Any, cost: Any) -> None:
    """Bytes in use along the schedule, arguments and results at the bottom."""
    memory = cost.memory
    gib, unit = _unit(memory.peak)
    profile = [b / gib for b in memory.profile]
    base = (memory.arguments + memory.outputs - memory.aliased) / gib
    steps = range(len(profile))
    axes.fill_between(
        steps, profile, base, step="post", color=_COLOURS["temporary"], label="temporaries"
    )
    axes.fill_between(
        steps, base, 0, step="post", color=_COLOURS["argument"], label="arguments and results"
    )
    axes.axhline(memory.peak / gib, color="black", linewidth=0.8, linestyle=":")
    axes.text(
        0, memory.peak / gib, f" with fragmentation {memory.peak / gib:.2f} {unit}", va="bottom"
    )
    limit, top = cost.device.memory_bytes / gib, 1.15 * memory.peak / gib
    axes.axhline(limit, color="#c1121f", label=f"{cost.device.name} has {limit:.1f} {unit}")
    axes.set(
        xlabel="kernel",
        ylabel=unit,
        title="Memory over the step",
        xlim=(0, max(len(profile) - 1, 1)),
    )
    end = max(top, 1.3 * limit)
    axes.set_ylim(0, end)
    if limit > _BROKEN * top:
        _break(axes, top, end, limit)
    axes.legend(loc="lower right")


def _break(axes: Any, at: float, end: float, mark: float) -> None:
    """Compresses the y axis above a value, up to the end, into a tenth of its length."""
    from matplotlib.ticker import MaxNLocator

    scale = 0.1 * at / (end - at)

    def forward(y: Any) -> Any:
        return np.where(y <= at, y, at + (y - at) * scale)

    def inverse(y: Any) -> Any:
        return np.where(y <= at, y, at + (y - at) / scale)

    axes.set_yscale("function", functions=(forward, inverse))
    ticks = [tick for tick in MaxNLocator(5).tick_values(0, at) if 0 <= tick <= at]
    axes.set_yticks([*ticks, mark], [f"{tick:g}" for tick in ticks] + [f"{mark:.1f}"])
    axes.axhline(at, color="white", linewidth=5)
    axes.text(0, at, "//", transform=axes.get_yaxis_transform(), ha="center", va="center")


def draw_owners(axes: Any, cost: Any) -> None:
    """The largest values alive at the peak, those that are alike together; temporaries by the line
    that makes them."""
    owners = cost.memory.owners[:10][::-1]
    gib, unit = _unit(max((o.nbytes for o in owners), default=1))
    names = [
        f"{o.source} {name}" if o.source and o.kind == "temporary" else name
        for o, name in zip(owners, short_names([o.name for o in owners]), strict=True)
    ]
    axes.barh(
        range(len(owners)),
        [o.nbytes / gib for o in owners],
        color=[_COLOURS[o.kind] for o in owners],
    )
    axes.set_yticks(range(len(owners)), names, fontsize=8)
    for row, owner in enumerate(owners):
        at = (0, row)
        axes.annotate(owner.types, at, (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set(xlabel=unit, title="Alive at the peak")
    for kind in dict.fromkeys(o.kind for o in owners):
        axes.barh(0, 0, color=_COLOURS[kind], label=kind)
    axes.legend(loc="lower right")


def draw_kinds(axes: Any, cost: Any) -> None:
    """Seconds by kind of work and by collective."""
    kinds = sorted(cost.timing.by_kind.items(), key=lambda item: item[1])
    scale, unit = (1e3, "ms") if sum(cost.timing.by_kind.values()) < 1 else (1.0, "s")
    colours = [
        _COLOURS["compute" if k.endswith(("matmul", "convolution", "memory")) else "hidden"]
        for k, _ in kinds
    ]
    bars = axes.barh([k for k, _ in kinds], [scale * s for _, s in kinds], color=colours)
    axes.bar_label(bars, fmt="%.3g", padding=3)
    axes.margins(x=0.15)
    axes.set(xlabel=unit, title="Time by kind of work")


def draw_steps(axes: Any, plan: Any) -> None:
    """One bar per tactic, after that of one device: seconds; memory beside it as text."""
    names, compute, exposed, apart = [], [], [], []
    shown = plan.rows()
    longest = max(step.simulation.predicted_seconds.total for step in shown)
    scale, unit = (1e3, "ms") if longest < 1 else (1.0, "s")
    for step in shown:
        seconds = step.simulation.predicted_seconds
        names.append(f"{step.name}\n{amount(step.simulation.peak_memory_bytes, 'B', 1024)}")
        compute.append(scale * (seconds.compute + seconds.overhead))
        exposed.append(scale * seconds.exposed)
        apart.append(scale * seconds.apart)
    places = range(len(names))
    totals = [c + e for c, e in zip(compute, exposed, strict=True)]
    axes.bar(places, compute, color=_COLOURS["compute"], label="kernels")
    axes.bar(
        places, exposed, bottom=compute, color=_COLOURS["exposed"], label="exposed collectives"
    )
    if any(a > 1.001 * t for a, t in zip(apart, totals, strict=True)):
        axes.vlines(places, totals, apart, color="black", linewidth=1.2, label="without overlap")
    for place, total, end in zip(places, totals, apart, strict=True):
        axes.annotate(
            f"{total:.3g}", (place, max(total, end)), (0, 2), textcoords="offset points",
            ha="center", fontsize=9,
        )  # fmt: skip
    axes.set_xticks(places, names, fontsize=9)
    axes.set(ylabel=unit, title="After each tactic (peak memory below)")
    highest = max(*totals, *apart)
    if highest > _BROKEN * min(totals):
        # A bar of one device would leave nothing of those of many.
        axes.set_yscale("log")
        axes.set_ylim(0.5 * min(compute), 4 * highest)
    else:
        axes.set_ylim(0, 1.25 * highest)
    axes.legend(loc="upper right", ncols=2)


def _unit(nbytes: float) -> tuple[float, str]:
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= size:
            return float(size), unit
    return 1.0, "B"


def short_names(names: Sequence[str]) -> list[str]:
    """Paths without their middles, where they are long; those that differ stay different."""
    kept: dict[str, set[int]] = {name: set() for name in names}
    for _ in range(max((name.count("/") for name in names), default=0) + 2):
        groups: dict[str, list[str]] = {}
        for name, parts in kept.items():
            groups.setdefault(_short(name, parts), []).append(name)
        alike = [group for group in groups.values() if len(group) > 1]
        if not alike:
            return [_short(name, kept[name]) for name in names]
        for group in alike:
            # Of names that look alike, the first parts in which they differ are shown too.
            for i, found in enumerate(itertools.zip_longest(*(name.split("/") for name in group))):
                if len(set(found)) > 1 and not all(i in kept[name] for name in group):
                    break
            for name in group:
                kept[name].add(i)
    return list(names)


def _short(name: str, kept: Collection[int] = ()) -> str:
    """A path without its middle, where it is long, but for those of its parts that are kept."""
    if len(name) <= _LETTERS:
        return name
    parts = name.split("/")
    # As much of the end as fits beside the first two parts: parameters and targets end alike.
    first = next(
        (i for i in range(2, len(parts)) if len("/".join(parts[i:])) <= _END), len(parts) - 1
    )
    if len(parts) < 3:
        return name if kept else f"...{name[-_END:]}"
    shown, last = [parts[0]], 0
    for i in sorted({1, *(one for one in kept if 0 < one < first), *range(first, len(parts))}):
        shown += ["..."] * (i > last + 1) + [parts[i]]
        last = i
    return "/".join(shown)
