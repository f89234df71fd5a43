"""Settings of IQL."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal  # noqa: F401 - Literal: of inherited fields, read here

from ..bounds import AllBounds
from ..configs import AdamConfig, CriticConfig, CriticLossConfig, TorsoConfig, WeightedConfig


@dataclasses.dataclass(frozen=True)
class IQLConfig(WeightedConfig, AdamConfig, CriticConfig, CriticLossConfig, TorsoConfig):
    """Settings of implicit Q-learning. The defaults are those of its authors for locomotion."""

    expectile: float = 0.7
    """tau of the value: 0.5 values the data's policy, near 1 the best of its actions."""
    temperature: float = 1 / 3
    max_weight: float = 100.0
    learning_rate: float = 3e-4
    max_gradient_norm: float | None = None

    bounds: ClassVar[AllBounds] = {"expectile": (0.5, 0.999)}
