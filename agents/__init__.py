"""Agents: the builder and the parts it makes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .acting.actor import GenericActor
    from .builder import Builder, OfflineBuilder, OffPolicyBuilder
    from .catalogue import AGENTS, find_builder
    from .interfaces import ActorCore, Update, UpdateOutput
    from .learning.learner import SGDLearner
    from .variables.client import VariableClient

__all__ = [
    "AGENTS",
    "ActorCore",
    "Builder",
    "GenericActor",
    "OffPolicyBuilder",
    "OfflineBuilder",
    "SGDLearner",
    "Update",
    "UpdateOutput",
    "VariableClient",
    "find_builder",
]

# Loaded on first use: what checks values, below here, is needed before jax is imported.
_HOMES = {
    "AGENTS": "catalogue",
    "ActorCore": "interfaces",
    "Builder": "builder",
    "GenericActor": "acting.actor",
    "OffPolicyBuilder": "builder",
    "OfflineBuilder": "builder",
    "SGDLearner": "learning.learner",
    "Update": "interfaces",
    "UpdateOutput": "interfaces",
    "VariableClient": "variables.client",
    "find_builder": "catalogue",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
