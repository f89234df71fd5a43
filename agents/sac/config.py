"""Settings of SAC."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal  # noqa: F401 - Literal: of inherited fields, read here

from ..bounds import Above, AllBounds
from ..configs import (
    ActorCriticConfig,
    AdamConfig,
    CriticConfig,
    CriticLossConfig,
    MemoryConfig,
    TargetConfig,
    TorsoConfig,
)


@dataclasses.dataclass(frozen=True)
class SoftConfig(TargetConfig, AdamConfig, CriticConfig, CriticLossConfig, TorsoConfig):
    """Of critics and a policy that is paid for its entropy, wherever transitions come from."""

    initial_temperature: float = 1.0
    """Worth of a nat of entropy in rewards, at first."""
    target_entropy: float | None = None
    """Entropy that the temperature is adapted to keep, in nats; None: -1 for each number of an
    action, where its range is from -1 to 1; of a discrete action, 0.98 of the most there can be."""
    num_critics: int = 2
    """Critics, of which the least value counts."""
    num_target_critics: int | None = None
    """Critics, drawn anew for each gradient step, of whose target values the least counts; the
    policy then learns from the mean of all (REDQ). None: all count, and their least."""
    critic_dropout: float = 0.0
    """Chance that a unit of the critics' hidden layers is left out, drawn anew for each value that
    is learned from (DroQ, which takes 0.01 and critic_network layer_norm)."""

    bounds: ClassVar[AllBounds] = {
        "initial_temperature": Above(0.0, 1e6),
        "target_entropy": (-1e6, 1e6),
        "num_critics": (1, 100),
        "num_target_critics": (1, 100),
        "critic_dropout": (0.0, 0.9),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_target_critics is not None and self.num_target_critics > self.num_critics:
            raise ValueError(
                f"num_target_critics is {self.num_target_critics} of num_critics "
                f"{self.num_critics}; no more can be drawn than there are."
            )


@dataclasses.dataclass(frozen=True)
class SACConfig(ActorCriticConfig, MemoryConfig, SoftConfig):
    """Settings of soft actor-critic. The defaults are those of its paper."""
