"""Settings of TD3."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal  # noqa: F401 - Literal: of inherited fields, read here

from ..bounds import AllBounds
from ..configs import (
    ActorCriticConfig,
    CriticLossConfig,
    GaussianNoiseConfig,
    MemoryConfig,
    TorsoConfig,
)


@dataclasses.dataclass(frozen=True)
class TD3Config(
    ActorCriticConfig, CriticLossConfig, GaussianNoiseConfig, MemoryConfig, TorsoConfig
):
    """Settings of TD3. The defaults are those of its paper."""

    learning_rate: float = 1e-3
    target_update_period: int = 2
    """Gradient steps of the critics between those of the policy, with which all targets move."""
    smoothing_std: float = 0.2
    """Standard deviation of the noise on actions bootstrapped from, where their range is from -1 to
    1."""
    smoothing_clip: float = 0.5
    """That noise lies between +- this, likewise."""

    bounds: ClassVar[AllBounds] = {"smoothing_std": (0.0, 10.0), "smoothing_clip": (0.0, 10.0)}
