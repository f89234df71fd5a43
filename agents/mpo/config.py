"""Settings of MPO."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal  # noqa: F401 - Literal: of inherited fields, read here

from ..bounds import Above, AllBounds
from ..configs import ActorCriticConfig, AtomsConfig, TorsoConfig


@dataclasses.dataclass(frozen=True)
class MPOConfig(ActorCriticConfig, AtomsConfig, TorsoConfig):
    """Settings of maximum a posteriori policy optimisation."""

    distributional: bool = False
    """True: the critic estimates distributions of returns (Bellemare et al., 2017) in place of
    their means, by the atoms below."""
    n_step: int = 5
    target_update_period: int = 100
    target_update_rate: float = 1.0
    num_samples: int = 20
    """Actions drawn of every state, which are weighed against each other."""
    epsilon: float = 0.1
    """Greatest KL of the weighed actions from those drawn, in nats."""
    epsilon_mean: float = 2.5e-3
    """Greatest KL of the policy from the one before, by its means; of choices, as a whole. Each
    leaf of a nest of actions has its own."""
    epsilon_scale: float = 1e-5
    """Greatest KL of the policy from the one before, by its standard deviations; likewise."""
    initial_temperature: float = 1.0
    """Of the weights, in values, at first."""
    initial_multiplier: float = 10.0
    """Penalty of a nat of those KLs, at first."""
    dual_learning_rate: float = 1e-2
    """Step size of Adam for temperature and penalties."""

    bounds: ClassVar[AllBounds] = {
        "num_samples": (2, 10_000),
        "epsilon": Above(0.0, 1e3),
        "epsilon_mean": Above(0.0, 1e3),
        "epsilon_scale": Above(0.0, 1e3),
        "initial_temperature": Above(0.0, 1e6),
        "initial_multiplier": Above(0.0, 1e6),
        "dual_learning_rate": (0.0, 100.0),
    }
