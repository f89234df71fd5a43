"""Settings of CRR."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal  # noqa: F401 - Literal: of inherited fields, read here

from ..bounds import AllBounds
from ..configs import (
    AdamConfig,
    CriticConfig,
    CriticLossConfig,
    TorsoConfig,
    WeightedConfig,
    require_choice,
)


@dataclasses.dataclass(frozen=True)
class CRRConfig(WeightedConfig, AdamConfig, CriticConfig, CriticLossConfig, TorsoConfig):
    """Settings of critic-regularised regression. The defaults are those of its authors."""

    weights: str = "exponential"
    """Of the data's actions: exponential in their advantage, or binary: 1 where it is above 0, and
    0 elsewhere."""
    num_action_samples: int = 4
    """Actions of the policy that a state's value is the mean of."""
    learning_rate: float = 3e-4
    max_gradient_norm: float | None = 40.0

    bounds: ClassVar[AllBounds] = {"num_action_samples": (1, 1_000)}

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice(self, "weights", ("exponential", "binary"))
