"""Settings of DQN."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from ..bounds import Above, AllBounds
from ..configs import (
    AdamConfig,
    AtomsConfig,
    EpsilonGreedyConfig,
    PriorityConfig,
    TargetConfig,
    TorsoConfig,
    require_choice,
)


@dataclasses.dataclass(frozen=True)
class DQNConfig(
    PriorityConfig, EpsilonGreedyConfig, TargetConfig, AdamConfig, TorsoConfig, AtomsConfig
):
    """Settings of DQN and its well-known additions. The defaults suit small control tasks."""

    dueling: bool = False
    """Estimate state value and advantages apart (Wang et al., 2016)."""
    double: bool = True
    """Choose the bootstrapped action by the online network (van Hasselt et al., 2016)."""
    loss: str = "huber"
    """huber or squared; quantiles are regressed on with huber, and a categorical distribution has a
    loss of its own."""
    huber_threshold: float = 1.0
    """Error at which the Huber loss turns linear."""
    distribution: str = "none"
    """Estimate of an action's return: none, its mean alone; categorical, probabilities of
    fixed returns (Bellemare et al., 2017); quantile, its quantiles (Dabney et al., 2018)."""
    munchausen_scale: float | None = None
    """Adds this much of the log-policy to the reward and bootstraps by a softmax of the values
    (Vieillard et al., 2020, who take 0.9 and double false); None does not."""
    munchausen_temperature: float = 0.03
    """Of that softmax."""
    munchausen_least: float = -1.0
    """Lower bound of the log-policy times the temperature."""
    noisy_std: float | None = None
    """Explores by noise on the weights behind the torso (Fortunato et al., 2018, who take 0.5 and
    epsilon 0), of this deviation over the root of a layer's inputs at first; None has none."""

    bounds: ClassVar[AllBounds] = {
        "huber_threshold": Above(0.0, 1e6),
        "munchausen_scale": (0.0, 1.0),
        "munchausen_temperature": Above(0.0, 1e6),
        "munchausen_least": (-1e6, 0.0),
        "noisy_std": Above(0.0, 100.0),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice(self, "loss", ("huber", "squared"))
        require_choice(self, "distribution", ("none", "categorical", "quantile"))
        if self.distribution != "none" and self.loss != "huber":
            raise ValueError(
                f"loss is {self.loss!r} and distribution is {self.distribution!r}, which has a "
                "loss of its own; leave loss at 'huber'."
            )


@dataclasses.dataclass(frozen=True)
class C51Config(DQNConfig):
    """Settings of categorical DQN (Bellemare et al., 2017, https://arxiv.org/abs/1707.06887)."""

    double: bool = False
    distribution: str = "categorical"


@dataclasses.dataclass(frozen=True)
class QRDQNConfig(DQNConfig):
    """Settings of quantile regression DQN (Dabney et al., 2018,
    https://arxiv.org/abs/1710.10044)."""

    double: bool = False
    distribution: str = "quantile"
    num_atoms: int = 200


@dataclasses.dataclass(frozen=True)
class RainbowConfig(DQNConfig):
    """Settings of Rainbow (Hessel et al., 2018, https://arxiv.org/abs/1710.02298)."""

    dueling: bool = True
    distribution: str = "categorical"
    n_step: int = 3
    priority_exponent: float | None = 0.5
    noisy_std: float | None = 0.5
    epsilon_start: float = 0.0
    epsilon_end: float = 0.0
