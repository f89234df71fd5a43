"""What can be set of BC."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from ..bounds import MOST_STEPS, AllBounds
from ..configs import AdamConfig, GaussianConfig, MLPConfig, OfflineConfig


@dataclasses.dataclass(frozen=True)
class BCConfig(OfflineConfig, GaussianConfig, AdamConfig, MLPConfig):
    """Settings of behavioural cloning. The defaults suit small control tasks."""

    learning_rate_steps: int | None = None
    """Gradient steps in which the step size goes linearly to 0; None keeps it."""
    entropy_cost: float = 0.0
    """Weight of an entropy bonus, which keeps the policy from being surer than the data."""

    bounds: ClassVar[AllBounds] = {
        "learning_rate_steps": (1, MOST_STEPS),
        "entropy_cost": (0.0, 1e3),
    }
