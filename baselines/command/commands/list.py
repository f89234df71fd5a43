"""`troupe list`"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ...tuned import Tuned
from ..parser import Commands


def register(commands: Commands) -> None:
    commands.add(
        "list",
        "list agents, wrappers, environments with tuned settings, tactics and devices",
        print_lists,
    )


def print_lists(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    from ....agents import AGENTS, find_builder
    from ....agents.wrappers.composition import WRAPPERS, find_wrapper

    rows = [(name, _summary(find_builder(name).config_class)) for name in sorted(AGENTS)]
    _print_table("agents", rows)
    wrappers = [(f"{name}+AGENT", _summary(find_wrapper(name))) for name in sorted(WRAPPERS)]
    _print_table("wrappers", wrappers)
    _print_table(
        "environments with tuned settings",
        [
            (
                one.env,
                f"{one.agent}, {one.steps:,} steps"
                + (f" to a return of {one.target:g}" if one.target is not None else ""),
            )
            for one in sorted(settings, key=lambda one: (one.env, one.agent))
        ],
    )
    from ....partitioning import tactics
    from ....partitioning.simulator import DEVICES

    named = sorted(tactics.NAMED.items())
    _print_table("tactics", [(name, _summary(tactic)) for name, tactic in named])
    gigabytes = {name: one.memory_bytes / 2**30 for name, one in DEVICES.items()}
    _print_table("devices", [(name, f"{size:.0f} GiB") for name, size in gigabytes.items()])
    return 0


def _summary(documented: Any) -> str:
    """The first sentence of a docstring."""
    return " ".join((documented.__doc__ or "").split()).partition(". ")[0].removesuffix(".")


def _print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    print(title)
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows or [("none", "")]:
        print(f"  {name:<{width}}  {text}".rstrip())
