"""What can be set of BC."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from ..bounds import MOST_STEPS, AllBounds
from ..configs import AdamConfig, MLPConfig, OfflineConfig


@dataclasses.dataclass(frozen=True)
class BCConfig(OfflineConfig, AdamConfig, MLPConfig):
    """Settings of behavioural cloning. The defaults suit small control tasks."""

    learning_rate_steps: int | None = None
    """Gradient steps in which the step size goes linearly to 0; None keeps it."""
    entropy_cost: float = 0.0
    """Weight of an entropy bonus, which keeps the policy from being surer than the data."""
    initial_log_std: float = 0.0
    """Logarithm of the standard deviation of continuous actions at the start."""
    least_log_std: float = -5.0
    """Lower bound of that logarithm: without one, data of a policy that draws nothing would have
    the deviation shrink for ever."""

    bounds: ClassVar[AllBounds] = {
        "learning_rate_steps": (1, MOST_STEPS),
        "entropy_cost": (0.0, 1e3),
        "initial_log_std": (-20.0, 20.0),
        "least_log_std": (-20.0, 20.0),
    }
