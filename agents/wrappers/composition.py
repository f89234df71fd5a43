"""Builders of wrappers and an agent, made by name."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Sequence
from typing import Any

from ..builder import Builder

WRAPPERS = {
    "demonstrations": ".demonstrations:Demonstrations",
    "gail": ".gail:GAIL",
    "independent": ".independent:Independent",
    "normalized": ".normalized:Normalized",
    "normalized_rewards": ".normalized_rewards:NormalizedRewards",
    "rnd": ".rnd:RND",
    "sqil": ".sqil:SQIL",
}
"""Name to module and class."""


def find_wrapper(name: str) -> type[Any]:
    """The class of a wrapper.

    Raises:
      ValueError: where there is none, listing what there is.
    """
    if name not in WRAPPERS:
        raise ValueError(
            f"There is no wrapper {name!r}, to stand before an agent with a +; there are "
            f"{', '.join(sorted(WRAPPERS))}."
        )
    module, _, attribute = WRAPPERS[name].partition(":")
    return getattr(importlib.import_module(module, __package__), attribute)


def compose(
    wrappers: Sequence[str], agent: str, builder_class: type[Builder], module: str
) -> type[Builder]:
    """A builder of an agent within wrappers, the first of them the outermost.

    Args:
      wrappers: names, of `WRAPPERS`.
      agent: the name by which `catalogue.find_builder` finds the agent.
      builder_class: of the agent.
      module: the name of the one whose attribute `NAME builder` such a class is, and `NAME config`
        its config's, with slashes for dots: so they can be pickled as those written down.

    Raises:
      ValueError: where a wrapper is named that there is not, or twice.
    """
    if len({*wrappers}) < len(wrappers):
        raise ValueError(f"A wrapper is named twice in {'+'.join([*wrappers, agent])}.")
    for name in reversed(wrappers):
        builder_class = _wrap(name, agent, builder_class, module)
        agent = f"{name}+{agent}"
    return builder_class


@functools.cache
def _wrap(wrapper: str, agent: str, builder_class: type[Builder], module: str) -> type[Builder]:
    wrapper_class, name = find_wrapper(wrapper), f"{wrapper}+{agent}"
    config_class = type(
        _attribute(name, "config"),
        # The agent's first: where both say a default, its own holds.
        (builder_class.config_class, wrapper_class.config_class),
        {"__module__": module, "__doc__": f"Settings of {name}."},
    )
    fields = {
        "__module__": module,
        "__doc__": f"{name}: see {wrapper_class.__name__} and {builder_class.__name__}.",
        "name": name,
        "config_class": dataclasses.dataclass(frozen=True)(config_class),
    }
    return type(_attribute(name, "builder"), (wrapper_class, builder_class), fields)


def _attribute(name: str, kind: str) -> str:
    """Returns the name of a class here: no dots, which stand for attributes of attributes."""
    return f"{name.replace('.', '/')} {kind}"
