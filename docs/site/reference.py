"""Pages of the reference: for each package one of its public modules, and the command line."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import types
from collections.abc import Iterator
from typing import Any

from troupe.agents import AGENTS

MODULES = (
    "troupe.environments",
    "troupe.environments.action_masks",
    "troupe.environments.external",
    "troupe.environments.external.client",
    "troupe.environments.fakes",
    "troupe.environments.text",
    "troupe.environments.text.grammar",
    "troupe.partitioning",
    "troupe.partitioning.tactics",
    "troupe.launch",
    "troupe.agents",
    "troupe.agents.configs",
    "troupe.agents.replay",
    "troupe.agents.acting.policies",
    "troupe.agents.learning.descent",
    "troupe.agents.learning.normalization",
    "troupe.agents.learning.optimizers",
    "troupe.agents.learning.prioritisation",
    "troupe.agents.learning.rows",
    "troupe.agents.learning.schedules",
    "troupe.agents.learning.targets",
    "troupe.agents.action_spaces",
    "troupe.agents.legal_actions",
    "troupe.agents.losses.distributional",
    "troupe.agents.losses.estimates",
    "troupe.agents.losses.actor_critic",
    "troupe.agents.losses.masks",
    "troupe.agents.losses.mpo",
    "troupe.agents.losses.policy",
    "troupe.agents.losses.priorities",
    "troupe.agents.losses.returns",
    "troupe.agents.losses.tokens",
    "troupe.agents.losses.values",
    "troupe.agents.networks.assembly",
    "troupe.agents.networks.core",
    "troupe.agents.networks.critics",
    "troupe.agents.networks.distributions",
    "troupe.agents.networks.heads",
    "troupe.agents.networks.noisy",
    "troupe.agents.networks.policies",
    "troupe.agents.networks.recurrent",
    "troupe.agents.networks.torsos",
    "troupe.agents.networks.transformer",
    "troupe.agents.networks.windows",
    "troupe.agents.wrappers.demonstrations",
    "troupe.agents.wrappers.gail",
    "troupe.agents.wrappers.independent",
    "troupe.agents.wrappers.normalized",
    "troupe.agents.wrappers.normalized_rewards",
    "troupe.agents.wrappers.rnd",
    "troupe.agents.wrappers.sqil",
    "troupe.agents.wrappers.wrapper",
    "troupe.agents.bc",
    "troupe.agents.cql",
    "troupe.agents.crr",
    "troupe.agents.d4pg",
    "troupe.agents.dqn",
    "troupe.agents.grpo",
    "troupe.agents.impala",
    "troupe.agents.iql",
    "troupe.agents.mpo",
    "troupe.agents.muzero",
    "troupe.agents.ppo",
    "troupe.agents.r2d2",
    "troupe.agents.sac",
    "troupe.agents.td3",
)
"""Those whose names users write."""
_BY_NAME = "troupe.agents.by-name"
HEADINGS = {_BY_NAME: "Builders and configs of the agents"}
"""The headings of pages that are not called by their package."""


def pages() -> Iterator[tuple[str, str]]:
    """Yields names and texts of pages. A name that several modules have is described once, where it
    is first met; the other pages say where."""
    owners: dict[str, str] = {}
    found: dict[str, list[types.ModuleType]] = {}
    for name in MODULES:
        found.setdefault(page_of(name), []).append(importlib.import_module(name))
    yield "reference/commands.md", commands_page()
    for page, modules in found.items():
        title = f"{_heading(HEADINGS.get(page, page), '=')}\n" if len(modules) > 1 else ""
        sections = (section(module, owners, "-" if title else "=") for module in modules)
        yield f"reference/{page}.rst", title + "\n".join(sections)
    yield "reference/index.md", index_page(found)


def page_of(module: str) -> str:
    """The page of a module: that of its package, or the one of all agents."""
    parts = module.split(".")
    if parts[1] == "agents" and parts[2:] and parts[2] in AGENTS:
        return _BY_NAME
    return ".".join(parts[:3])


def section(module: types.ModuleType, owners: dict[str, str], underline: str) -> str:
    """Returns the source from which Sphinx's autodoc describes a module.

    Args:
      module: the module.
      underline: of the heading.
      owners: by the place where an object is defined, the module whose page describes it; those
        that this one describes are added.
    """
    name = module.__name__
    own, others = [], []
    for public in public_names(module):
        value = getattr(module, public)
        place = f"{getattr(value, '__module__', name)}.{getattr(value, '__qualname__', public)}"
        owner = owners.setdefault(place, name)
        (own if owner == name else others).append((public, owner))
    lines = [_heading(name, underline), f".. automodule:: {name}"]
    if own:
        lines += [f"   :members: {', '.join(public for public, _ in own)}"]
    if others:
        links = [f":py:obj:`{public} <{owner}.{public}>`" for public, owner in others]
        lines += ["", f"Described elsewhere: {', '.join(links)}."]
    return "\n".join([*lines, ""])


def public_names(module: types.ModuleType) -> list[str]:
    """The names that a module makes public: those of `__all__`, or, in a package without one, all
    that it imports; in a module those it defines. Names that need a missing package are left out.
    """
    listed = getattr(module, "__all__", None)
    found = []
    for name in vars(module) if listed is None else listed:
        try:
            value = getattr(module, name)
        except ImportError as error:  # Of Launchpad, where it is not installed.
            print(f"{module.__name__}.{name} is left out: {error}")
            continue
        if name.startswith("_") or isinstance(value, types.ModuleType):
            continue
        is_package = hasattr(module, "__path__")
        if listed is not None or is_package or _is_defined_in(module, value):
            found.append(name)
    return [name for name in found if _is_described(module, name)]


def _is_defined_in(module: types.ModuleType, value: Any) -> bool:
    return getattr(value, "__module__", module.__name__) == module.__name__


def _is_described(module: types.ModuleType, name: str) -> bool:
    """True for classes and functions of the package. A value has no docstring of its own, and
    Sphinx looks for the text below it where it is assigned."""
    value = getattr(module, name)
    home = getattr(value, "__module__", None)
    if callable(value) and isinstance(home, str) and hasattr(value, "__qualname__"):
        return home.startswith("troupe")
    return name in _assigned(module.__file__)


def _assigned(file: str | None) -> set[str]:
    """Names that a file assigns to at its top level."""
    assert file is not None
    with open(file) as source:
        body = ast.parse(source.read()).body
    targets = [
        target
        for node in body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def commands_page() -> str:
    """Returns the page of commands of `troupe`, each with its help."""
    from troupe.baselines.command import commands
    from troupe.baselines.command.parser import Commands

    known = Commands()
    for command in commands.ALL:
        command.register(known)
    (choices,) = (
        action.choices
        for action in known.parser._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    text = "# The command line\n\n`troupe COMMAND --help` prints what stands here.\n"
    for name, parser in choices.items():
        text += f"\n## `troupe {name}`\n\n```text\n{parser.format_help()}```\n"
    return text


def index_page(pages: dict[str, list[types.ModuleType]]) -> str:
    """A list of all modules, by page."""
    text = "# Reference\n\n- [The command line](commands.md)\n"
    for page, modules in pages.items():
        text += f"- [{HEADINGS.get(page, page)}]({page}.rst)\n" if len(modules) > 1 else ""
        for module in modules:
            summary = (module.__doc__ or "").partition("\n")[0]
            indent = "  " if len(modules) > 1 else ""
            text += f"{indent}- [`{module.__name__}`]({page}.rst): {summary}\n"
    return text


def _heading(text: str, underline: str) -> str:
    return f"{text}\n{underline * len(text)}\n"


def as_restructured_text(text: str) -> str:
    """A docstring of the package as reStructuredText: `code` is code, an indented block behind a
    colon is a block of code, and no character of mathematics is markup."""
    parts = re.split(r"(:\w+:`[^`]+`|``[^`]+``|`[^`\n]+(?:\n[^`\n]+)*`)", text)
    for i, part in enumerate(parts):
        if i % 2 == 0:
            part = re.sub(r"([*|])", r"\\\1", part)
            parts[i] = re.sub(r"(?<=\w)_(?!\w)", r"\\_", part)
        elif part.startswith("`") and not part.startswith("``"):
            # Behind it markup ends, whatever letter follows.
            parts[i] = f"``{' '.join(part[1:-1].split())}``\\ "
    return re.sub(r"(?m)^( *)(\S.*):\n\n(?=\1 +\S)", r"\1\2::\n\n", "".join(parts))
