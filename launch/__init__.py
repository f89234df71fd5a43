"""Running experiments: in one process, and as programs of many roles."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .distributed.deployment import Roles
    from .distributed.engines.launchpad.engine import launch
    from .distributed.engines.launchpad.program import make_program
    from .errors import Interrupted, RequestError, RunError
    from .experiment import Checkpointing, Evaluation, Experiment, Partition
    from .files.result import Result
    from .local.run import run

__all__ = [
    "Checkpointing",
    "Evaluation",
    "Experiment",
    "Interrupted",
    "Partition",
    "RequestError",
    "Result",
    "Roles",
    "RunError",
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
    "RequestError": "errors",
    "Result": "files.result",
    "Roles": "distributed.deployment",
    "RunError": "errors",
    "launch": "distributed.engines.launchpad.engine",
    "make_program": "distributed.engines.launchpad.program",
    "run": "local.run",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
