"""Running experiments: in one process, and the command line."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .conductor import launch
    from .errors import Interrupted, RequestError, RunError
    from .experiment import Checkpointing, Evaluation, Experiment, Partition
    from .one_process import run
    from .program import Program, make_program
    from .result import Result
    from .roles import Roles
    from .settings import Settings

__all__ = [
    "Checkpointing",
    "Evaluation",
    "Experiment",
    "Interrupted",
    "Partition",
    "Program",
    "RequestError",
    "Result",
    "Roles",
    "RunError",
    "Settings",
    "launch",
    "make_program",
    "run",
]

# Loaded on first use: the command line answers before jax is imported.
_HOMES = {
    "Checkpointing": "experiment",
    "Evaluation": "experiment",
    "Experiment": "experiment",
    "Interrupted": "errors",
    "Partition": "experiment",
    "Program": "program",
    "RequestError": "errors",
    "Result": "result",
    "Roles": "roles",
    "RunError": "errors",
    "Settings": "settings",
    "launch": "conductor",
    "make_program": "program",
    "run": "one_process",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
