"""A page for each agent, made from its docstrings, its config, the tuned settings and results."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import pathlib
import re
import statistics
import sys
import typing
from collections.abc import Iterator
from typing import Any

import tables

from troupe.agents import AGENTS, find_builder
from troupe.agents.bounds import Above, bounds_of
from troupe.agents.replay import items
from troupe.baselines.returns import ledger
from troupe.baselines.settings import SETTINGS
from troupe.launch.specification import fields

DOCS = pathlib.Path(__file__).parents[1]
ITEMS = {
    items.Transitions: "single transitions or n-step ones",
    items.Sequences: "windows of a sequence",
    items.Episodes: "whole episodes",
    items.Rollouts: "its newest steps, each once",
}
_CITATION = re.compile(
    r"([A-Z][\w-]+(?: et al\.| and [A-Z][\w-]+)?)(?: \(|, )(\d{4})\)?,?\s+(https?://[^\s),;]+)"
)


def pages() -> Iterator[tuple[str, str]]:
    """Yields names and texts: the index, and a page for each name of the catalogue."""
    names = sorted(AGENTS)
    rows = [[f"[`{name}`]({name}.md)", summary(name), ", ".join(actions(name))] for name in names]
    text = "# Agents\n\n[Which agent should I use?](../choosing.md) compares them. "
    text += "[Writing an agent](../agents.md) says how to add one.\n\n"
    yield "agents/index.md", text + tables.table(["agent", "what it is", "actions"], rows)
    for name in names:
        yield f"agents/{name}.md", page(name)


def page(name: str) -> str:
    """The page of an agent."""
    parts = [f"# {name}\n\n{description(name)}\n", _at_a_glance(name), _tuned(name)]
    parts += [_results(name), _fields(name), _papers(name)]
    return "\n".join(part for part in parts if part)


def summary(name: str) -> str:
    """The first sentence that the source says of an agent."""
    if _is_variant(name):
        return _clean(find_builder(name).__doc__).partition(".")[0]
    return _clean(_package(name).__doc__).partition(": ")[2].partition(".\n")[0].rstrip(".")


def description(name: str) -> str:
    """Returns the description of an agent in its source, for the head of its page."""
    if not _is_variant(name):
        return _clean(_package(name).__doc__)
    parent = find_builder(name).__mro__[1].name
    return (
        f"{_clean(find_builder(name).__doc__)} It is [{parent}]({parent}.md) with other defaults."
    )


def actions(name: str) -> tuple[str, ...]:
    return tables.drives(name)


def _clean(text: str | None) -> str:
    """A docstring as Markdown."""
    assert text
    return tables.linked(inspect.cleandoc(text))


def _package(name: str) -> Any:
    return sys.modules[find_builder(name).__module__.rpartition(".")[0]]


def _is_variant(name: str) -> bool:
    """True for an agent that is another one with other defaults."""
    return any(base.__dict__.get("name") in AGENTS for base in find_builder(name).__mro__[1:])


def _at_a_glance(name: str) -> str:
    builder = find_builder(name)()
    item = builder.make_replay_spec(tables.ACTIONS[actions(name)[0]]()).item
    known = fields.fields(builder.config_class)
    cores = typing.get_args(known["core"].kind) if "core" in known else ()
    memory = ", ".join(f"`{core}`" for core in cores if core != "none")
    wrappers = ", ".join(f"`{wrapper}+{name}`" for wrapper in tables.wrapped_by(name))
    learns = "data alone (`--data`)" if builder.needs_data else ITEMS[type(item)]
    seen = "vectors, images, and dicts or tuples of both"
    if actions(name) == (tables.ANSWERS,):
        seen = "prompts, of [tasks of text](../tokens.md)"
    rows = [
        ["actions", ", ".join(actions(name))],
        ["observations", seen],
        ["learns from", learns],
        ["memory", f"`--config.core`: {memory}" if memory else "none"],
        ["wrappers", wrappers or "none"],
        ["in Python", f"`{builder.__module__.rpartition('.')[0]}.{type(builder).__name__}`"],
    ]
    return tables.table(["", ""], rows)


def _tuned(name: str) -> str:
    rows = [
        [
            f"`{one.env}`",
            f"`{one.agent}`",
            f"{one.steps:,}",
            "" if one.target is None else f"{one.target:g}",
            tables.linked(one.source),
        ]
        for one in SETTINGS
        if _plain(one.agent) == name
    ]
    if not rows:
        return ""
    data = " --data DIR" if find_builder(name).needs_data else ""
    first = next(one for one in SETTINGS if _plain(one.agent) == name)
    text = "## Tuned settings\n\n`troupe train` uses them. With the first of them:\n\n"
    text += f"```\ntroupe train {first.agent} --env {first.env}{data}\n```\n\n"
    header = ["environment", "agent", "steps", "return to reach", "where the settings are from"]
    return text + tables.table(header, rows)


def _results(name: str) -> str:
    rows, is_drawn = [], False
    for env, cells in _published():
        if _plain(cells[0]) == name:
            is_drawn = True
            entry, seeds, mean, interval, *_, steps, _ = cells
            rows.append([f"`{env}`", f"`{entry}`", seeds, f"{mean} ({interval})", steps])
    for row in _recorded():
        if _plain(row["agent"]) == name:
            finals = [seed["final"] for seed in row["seeds"].values()]
            interval = f"{min(finals):.1f} to {max(finals):.1f}"
            where = f"`{row['env']}`, {row['launch']}"
            steps = f"{row['settings']['steps']:,} actor steps"
            mean = f"{statistics.fmean(finals):.1f}, of all seeds {interval}"
            rows.append([where, f"`{row['agent']}`", str(len(finals)), mean, steps])
    if not rows:
        return ""
    text = (
        "## What it reaches\n\nReturns of final evaluations: the interquartile mean over seeds and "
    )
    text += (
        "its 95 % interval, by the [tuned settings](../returns/results.md); of compiled runs, the "
    )
    text += "mean and the range, by the [ledger](../results.md#the-ledger).\n\n"
    text += tables.table(["environment", "agent", "seeds", "return", "steps"], rows)
    if is_drawn:
        picture = "../returns/curves.png"
        text += f"\n[![Learning curves of all agents with tuned settings]({picture})]({picture})\n"
    return text


@functools.cache
def _published() -> list[tuple[str, list[str]]]:
    """Environment and cells of each row of the tables of `docs/returns/results.md`."""
    found, env = [], ""
    for line in (DOCS / "returns" / "results.md").read_text().splitlines():
        if line.startswith("## "):
            env = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith("| entry "):
            found.append((env, [cell.strip() for cell in line.strip("|").split("|")]))
    return found


@functools.cache
def _recorded() -> list[dict[str, Any]]:
    """The newest row of each file of the ledger."""
    folder = pathlib.Path(ledger.__file__).parent / "rows"
    return [
        json.loads(path.read_text().splitlines()[-1]) for path in sorted(folder.glob("*.jsonl"))
    ]


def _plain(agent: str) -> str:
    """An agent's name without wrappers and options: `r2d2` of `normalized+r2d2`."""
    return agent.rpartition("+")[2].split()[0]


def _fields(name: str) -> str:
    config_class = find_builder(name).config_class
    bounds = bounds_of(config_class)
    rows = [
        [
            f"`{field.name}`",
            f"`{fields.text(field.default)}`",
            _allowed(field, bounds.get(field.name)),
            tables.linked(field.doc),
        ]
        for field in fields.fields(config_class).values()
    ]
    text = "## Settings\n\nEach is a flag, `--config.FIELD VALUE`, and a field of "
    text += f"`{config_class.__name__}`.\n\n"
    return text + tables.table(["field", "default", "allowed", "what it is"], rows)


def _allowed(field: fields.Field, bounds: Any) -> str:
    choices = [
        str(choice)
        for kind in (field.kind, *typing.get_args(field.kind))
        if typing.get_origin(kind) is typing.Literal
        for choice in typing.get_args(kind)
    ]
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    if field.kind is bool:
        return "`true`, `false`"
    if bounds is None:
        return ""
    low, high = bounds
    if low == high:
        return f"{low:,}"
    least = "above" if isinstance(bounds, Above) else "from"
    words = (
        "" if low is None else f"{least} {low:,.12g}",
        "" if high is None else f"to {high:,.12g}",
    )
    return " ".join(word for word in words if word)


def _papers(name: str) -> str:
    found: dict[str, str] = {}
    for text in _docstrings(name):
        for who, year, link in _CITATION.findall(" ".join(text.split())):
            found.setdefault(link.rstrip("."), f"{who} ({year})")
    if not found:
        return ""
    lines = [f"- [{label}]({link})" for link, label in found.items()]
    return "## Papers\n\n" + "\n".join(lines) + "\n"


def _docstrings(name: str) -> Iterator[str]:
    """The docstrings of an agent's own classes, then those of the functions of its folder."""
    builder = find_builder(name)
    yield from (builder.__doc__ or "", builder.config_class.__doc__ or "")
    if _is_variant(name):
        return
    yield _package(name).__doc__ or ""
    for path in sorted(pathlib.Path(_package(name).__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield ast.get_docstring(node) or ""
