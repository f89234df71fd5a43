"""The outcome of a run: `result.json`."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from typing import Any

PACKAGES = ("jax", "jaxlib", "dm-haiku", "optax", "numpy", "gymnasium")


@dataclasses.dataclass(frozen=True)
class Result:
    """The end of a run."""

    agent: str
    env: str
    seed: int
    launch: str
    """Kind of launch: one-process, threads, processes or ray."""
    actors: int
    learner_hosts: int
    """Processes that were the learner together."""
    mesh: str | None
    """Axes and sizes, as the command line takes them; None: one device."""
    devices: Mapping[str, str]
    """Platforms on which the `actor` and the `learner` computed: cpu, gpu or tpu."""
    actor_steps: int
    learner_steps: int
    """Gradient steps."""
    episodes: int
    wall_seconds: float
    """From the start of the run to its end, without the time between a stop and a resume."""
    train_seconds: float
    """Of these, spent in the loop of actors and learner; it includes compiling them, and neither
    evaluations nor checkpoints."""
    actor_steps_per_second: float
    """`actor_steps` over `train_seconds`."""
    learner_steps_per_second: float
    samples_per_insert: Mapping[str, float | None]
    """Its `target` (None: no pace is kept) and what was `observed`."""
    evaluation: Sequence[Mapping[str, Any]]
    """All evaluations, the last at the end of training (see `evaluation.Outcome.summary`)."""
    versions: Mapping[str, str]
    """Of Python and the packages that matter."""
    target_return: float | None = None
    """Mean that the last evaluation must reach; None: no target was set."""
    reached: bool | None = None
    """True if it does; None where there is no target."""
    best: Mapping[str, Any] | None = None
    """The evaluation with the highest mean, of equal ones the last: its policy is in `best/`."""
    ended: str | None = None
    """The reason that the run ended before its budget was spent; None: it is spent."""
    engine: str | None = None
    """Library that kept the roles running: launchpad or ray; None: the run was in one process."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of the packages that decide its numbers."""
    from ... import __version__

    found = {"python": ".".join(map(str, sys.version_info[:3])), "troupe": __version__}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
