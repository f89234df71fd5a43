"""Settings of D4PG."""

from __future__ import annotations

import dataclasses
from typing import Literal  # noqa: F401 - of inherited fields, read here

from ..configs import ActorCriticConfig, AtomsConfig, GaussianNoiseConfig, TorsoConfig


@dataclasses.dataclass(frozen=True)
class D4PGConfig(ActorCriticConfig, GaussianNoiseConfig, AtomsConfig, TorsoConfig):
    """Settings of D4PG, deterministic policy gradients of a distributional critic."""

    n_step: int = 5
    exploration_std: float = 0.3
    target_update_period: int = 100
    target_update_rate: float = 1.0
    min_return: float = -150.0
    max_return: float = 150.0
