"""Tuned settings of one agent for one environment, as values that the command line can look up."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

_SAME = "jax:"
"""Prefix of ids of environments that are, in JAX, those of the id that follows."""


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The settings of a run of `agent` on `env`, unless the user sets others."""

    agent: str
    """Name of the agent, as in `troupe train AGENT`."""
    env: str
    """Id of the environment."""
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the agent's config that differ from their defaults."""
    steps: int = 100_000
    """Budget in actor steps."""
    target: float | None = None
    """Mean evaluation return that a good run reaches; None: not known."""
    source: str = ""
    """The source of the settings."""
    environment: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of `environments.make`, in training and in evaluation."""
    training_environment: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further options of `environments.make` in training only: a clipped reward, say."""
    evaluation_every: int | None = None
    """Actor steps between evaluations; None: a tenth of the budget."""


def find(settings: Iterable[Tuned], agent: str, env: str) -> Tuned | None:
    """Returns the settings tuned for an agent and an environment, or for the same environment by
    another id; None where there are none."""
    same = env.removeprefix(_SAME)
    for one in settings:
        if one.agent == agent and one.env in (env, same):
            return dataclasses.replace(one, env=env)
    return None
