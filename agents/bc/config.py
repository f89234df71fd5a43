"""Settings of BC."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from ..bounds import AllBounds
from ..configs import AdamConfig, GaussianConfig, OfflineConfig, TorsoConfig


@dataclasses.dataclass(frozen=True)
class BCConfig(OfflineConfig, GaussianConfig, AdamConfig, TorsoConfig):
    """Settings of behavioural cloning. The defaults suit small control tasks."""

    entropy_cost: float = 0.0
    """Weight of an entropy bonus, which keeps the policy from being surer than the data."""

    bounds: ClassVar[AllBounds] = {
        "entropy_cost": (0.0, 1e3),
    }
