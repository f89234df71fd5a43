"""Compares the runs of this library with those of others, and prints them as a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

_MEDIANS = (
    "env_steps_per_second",
    "env_steps_per_cpu_second",
    "gradient_steps_per_second",
    "gradient_steps_per_second_in_training",
    "bare_gradient_steps_per_second",
    "share_of_bare_products",
    "gradient_steps_per_call",
    "warmup_seconds",
    "setup_seconds",
    "bare_env_steps_per_second",
)
#: Figure, its heading, and the heading of the ratio to it.
_COLUMNS = (
    ("env_steps_per_second", "env steps/s", "troupe is"),
    ("env_steps_per_cpu_second", "/CPU second", "troupe is"),
    ("wall_seconds_to_target", "s to target", "troupe is"),
    ("cpu_seconds_to_target", "CPU s to it", "troupe is"),
)
_FURTHER = (
    ("gradient_steps_per_call", "updates/call"),
    ("bare_env_steps_per_second", "bare env steps/s"),
    ("warmup_seconds", "warm-up s"),
    ("last_return", "last return"),
)
_NOT_ALIKE = (
    "The settings differ (the baseline's own here, the zoo's there): rates do not compare, last "
    "returns do."
)


def compare(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    to_target: bool = False,
    same_settings: bool = True,
) -> dict[str, Any]:
    """Returns medians of every library, and ratios of this one to each of the others.

    A ratio above 1 says that this library is ahead: more steps a second, fewer seconds to the
    target. Rates have no ratio where the settings differ. `seconds_to_target`, where there is one,
    is on the clock of the training with the warm-up left out, and None where the median run did not
    get there. Without a target, which ends evaluations, `leads` are the differences of this
    library's last return to the others'.
    """
    medians: dict[str, Any] = {}
    for library, results in runs.items():
        medians[library] = {
            name: statistics.median(values)
            for name in _MEDIANS
            if (values := [r[name] for r in results if r.get(name) is not None])
        }
        returns = [r["evaluations"][-1][1] for r in results if r["evaluations"]]
        if returns:
            medians[library]["last_return"] = statistics.median(returns)
        for clock in ("wall", "cpu") if to_target else ():
            medians[library][f"{clock}_seconds_to_target"] = _to_target(results, clock)
    ours = medians["troupe"]
    rates = ("env_steps_per_second", "env_steps_per_cpu_second") if same_settings else ()
    ratios: dict[str, dict[str, float]] = {}
    leads: dict[str, float] = {}
    for library, theirs in medians.items():
        if library == "troupe":
            continue
        ratios[library] = {name: ours[name] / theirs[name] for name in rates}
        for name in ("wall_seconds_to_target", "cpu_seconds_to_target"):
            if ours.get(name) and theirs.get(name):
                ratios[library][name] = theirs[name] / ours[name]
        if not to_target and "last_return" in ours and "last_return" in theirs:
            leads[library] = ours["last_return"] - theirs["last_return"]
    return {"medians": medians, "ratios": ratios, "leads": leads}


def _to_target(results: Sequence[Mapping[str, Any]], clock: str) -> float | None:
    """The median time to the target less the warm-up; a run that never got there counts as last."""
    warmup = "warmup_seconds" if clock == "wall" else "warmup_cpu_seconds"
    times = [
        r["target"][f"{clock}_seconds"] - r[warmup] if r["target"] else math.inf for r in results
    ]
    median = statistics.median_low(times)
    return median if math.isfinite(median) else None


def table(outcome: Mapping[str, Any], *, same_settings: bool = True) -> str:
    """The outcome of `compare` as text: a line for each library, ratios beside rates.

    A ratio above 1 says that this library is ahead, as in `compare`.
    """
    medians, ratios, leads = outcome["medians"], outcome["ratios"], outcome["leads"]
    columns: list[tuple[str, list[str]]] = [("", list(medians))]
    for name, heading, over in _COLUMNS:
        if any(name in found for found in medians.values()):
            columns.append((heading, [_number(found, name) for found in medians.values()]))
            if any(name in found for found in ratios.values()):
                cells = [ratios.get(library, {}).get(name) for library in medians]
                columns.append((over, ["" if x is None else f"{x:.2f} x" for x in cells]))
    for name, heading in _FURTHER:
        if any(name in found for found in medians.values()):
            columns.append((heading, [_number(found, name) for found in medians.values()]))
    if leads:
        cells = [leads.get(library) for library in medians]
        columns.append(("troupe's lead", ["" if x is None else f"{x:+,.1f}" for x in cells]))
    widths = [max(map(len, (heading, *cells))) for heading, cells in columns]
    lines = [heading for heading, _ in columns], *zip(*(cells for _, cells in columns), strict=True)
    text = [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    ]
    if len(medians) > 1 and not same_settings:
        text.append(_NOT_ALIKE)
    elif len(medians) > 1:
        text.append("N x: so many times the other's rate, or so many times sooner at the target.")
    return "\n".join(text)


def _number(found: Mapping[str, Any], name: str) -> str:
    if name not in found:
        return ""
    value = found[name]
    return "never" if value is None else f"{value:,.{0 if value >= 100 else 1}f}"
