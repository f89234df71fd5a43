"""Settings of CQL."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal  # noqa: F401 - Literal: of inherited fields, read here

from ..bounds import AllBounds
from ..configs import OfflineConfig
from ..sac.config import SoftConfig


@dataclasses.dataclass(frozen=True)
class CQLConfig(OfflineConfig, SoftConfig):
    """Settings of conservative Q-learning. The defaults are those of its authors for locomotion."""

    conservative_weight: float = 5.0
    """alpha: what the values of actions beyond the data count, against the errors of critics."""
    num_action_samples: int = 10
    """Actions that are drawn uniformly for each state to estimate that; as many are drawn of the
    policy, and as many of the policy in the state that follows."""
    learning_rate: float = 3e-4
    max_gradient_norm: float | None = None
    target_update_period: int = 1
    target_update_rate: float = 0.005

    bounds: ClassVar[AllBounds] = {
        "conservative_weight": (0.0, 1e6),
        "num_action_samples": (1, 1_000),
    }
