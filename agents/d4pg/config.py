"""What can be set of D4PG."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from ..bounds import AllBounds
from ..configs import ActorCriticConfig, GaussianNoiseConfig


@dataclasses.dataclass(frozen=True)
class D4PGConfig(ActorCriticConfig, GaussianNoiseConfig):
    """Settings of D4PG, deterministic policy gradients of a distributional critic."""

    n_step: int = 5
    exploration_std: float = 0.3
    target_update_period: int = 100
    target_update_rate: float = 1.0
    num_atoms: int = 51
    """Returns, evenly spaced, of which the critic gives the probabilities."""
    min_return: float = -150.0
    """The least of them."""
    max_return: float = 150.0
    """The greatest."""

    bounds: ClassVar[AllBounds] = {
        "num_atoms": (2, 10_000),
        "min_return": (-1e9, 1e9),
        "max_return": (-1e9, 1e9),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.min_return < self.max_return:
            raise ValueError(
                f"min_return is {self.min_return} and max_return is {self.max_return}; the least "
                "must be below the greatest."
            )
