"""troupe: distributed reinforcement learning in JAX, with partitioned learners.

The subpackages are the public faces: `troupe.environments`, `troupe.partitioning`, `troupe.agents`,
`troupe.launch` and `troupe.baselines`. They are loaded on first use, so that `import troupe` and
the command line's help stay quick.
"""

from __future__ import annotations

import importlib
import types

__version__ = "0.1.0"

_SUBPACKAGES = ("agents", "baselines", "environments", "launch", "partitioning")

__all__ = [
    "__version__",
    "agents",
    "baselines",
    "environments",
    "launch",
    "partitioning",
]


def __getattr__(name: str) -> types.ModuleType:
    if name in _SUBPACKAGES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
