"""troupe: distributed reinforcement learning in JAX, with partitioned learners.

The subpackages are the public faces: `troupe.environments`, `troupe.partitioning`, `troupe.agents`,
`troupe.launch` and `troupe.baselines`. They are loaded on first use, so that `import troupe` and
the command line's help stay quick.
"""

from __future__ import annotations

import importlib
import sys
import types

if sys.platform == "win32":
    raise ImportError(
        "troupe runs on Linux and macOS, and not on Windows: install it in WSL 2, which is Linux."
    )

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


MOVED = {
    "agents.actors": "agents.acting.actor",
    "agents.distributions": "agents.networks.distributions",
    "agents.gradients": "agents.learning.descent",
    "agents.normalization": "agents.learning.normalization",
    "agents.optimizers": "agents.learning.optimizers",
    "agents.policies": "agents.acting.policies",
    "agents.schedules": "agents.learning.schedules",
    "launch.checking": "launch.validation",
    "launch.judging": "launch.evaluation",
    "launch.request": "launch.specification",
    "launch.telling": "launch.logging",
}
"""The present places of modules that have moved."""


class _Moved:
    """Finds no module. It is asked last, and says of one that has moved where it is."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        package, _, module = name.partition(".")
        if package == __name__ and module in MOVED:
            raise ModuleNotFoundError(f"{name} has moved: it is {package}.{MOVED[module]} now.")


sys.meta_path.append(_Moved)  # type: ignore[arg-type]


def __getattr__(name: str) -> types.ModuleType:
    if name in _SUBPACKAGES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
