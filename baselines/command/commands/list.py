"""`troupe list`"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence

from ...tuned import Tuned
from .. import sources
from ..parser import Commands


def register(commands: Commands) -> None:
    commands.add(
        "list",
        "list agents, wrappers, environments with tuned settings, text tasks, tactics and devices",
        print_lists,
    )


def print_lists(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    agents, wrappers = "agents", "agents.wrappers"
    rows = [
        (name, _find(agents, where).attribute("config_class").summary)
        for name, where in sorted(sources.table("agents/catalogue.py", "AGENTS"))
    ]
    _print_table("agents", rows)
    found = sorted(sources.table("agents/wrappers/composition.py", "WRAPPERS"))
    rows = [(f"{name}+AGENT", _find(wrappers, where).summary) for name, where in found]
    _print_table("wrappers", rows)
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
    tasks = sorted(sources.table("environments/text/ids.py", "TASKS"))
    rows = [(f"tokens:{name}", _summary_of_task(made)) for name, made in tasks]
    reasoning = sources.find("environments.text.reasoning", "ReasoningTask").summary
    rows.append(("tokens:reasoning_gym/NAME", reasoning))
    rows.append(("tokens:MODULE:FUNCTION", "What a function of your own makes"))
    _print_table("text tasks", rows)
    rows = []
    for name, made in sorted(sources.table("partitioning/tactics/__init__.py", "NAMED")):
        class_name, _, parser = made.partition(".")
        tactic = sources.find("partitioning.tactics", class_name)
        rows.append((name, (tactic.attribute(parser) if parser else tactic).summary))
    _print_table("tactics", rows)
    presets = "partitioning/simulator/presets.py"
    rows = [*sources.table(presets, "TPUS"), *sources.table(presets, "GPUS")]
    _print_table("devices", [(name, f"{ast.literal_eval(row)[-3]:g} GB") for name, row in rows])
    return 0


def _summary_of_task(name: str) -> str:
    return sources.find("environments.text.tasks", name).summary


def _find(package: str, where: str) -> sources.Definition:
    """The class that a table names `.module:Class`."""
    module, _, name = where.partition(":")
    return sources.find(package + module, name)


def _print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    print(title)
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows or [("none", "")]:
        print(f"  {name:<{width}}  {text}".rstrip())
