"""Settings of MuZero."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from ..bounds import Above, AllBounds
from ..configs import (
    AdamConfig,
    AtomsConfig,
    PriorityConfig,
    SequenceConfig,
    TargetConfig,
    TorsoConfig,
)


@dataclasses.dataclass(frozen=True)
class MuZeroConfig(
    PriorityConfig, SequenceConfig, AtomsConfig, TargetConfig, AdamConfig, TorsoConfig
):
    """Settings of Gumbel MuZero. The defaults suit small tasks; replayed items are sequences."""

    hidden_sizes: tuple[int, ...] = (128,)
    """Units of the hidden layers: before the model's states, between two of them, and before policy
    and value. Images go through the Nature network."""
    state_size: int = 64
    """Numbers of a state of the model."""
    num_simulations: int = 16
    """Steps of the model that a search takes."""
    max_considered_actions: int = 16
    """Actions that a search considers at its root, at most."""
    search_depth: int | None = None
    """Steps of the model that a search looks ahead at most; None: num_simulations."""
    value_scale: float = 0.1
    """Weight of the values of a search against the logits of the policy that it betters
    (c_scale of equation 8): with less, policies change by less and noise in values evens out."""
    reanalyse: bool = True
    """Search anew in what is replayed, with the target network, for what policy and value are to
    be; else the policy is what the search of the actor found, and the target network's value is
    bootstrapped from."""
    unroll_steps: int = 5
    """Steps that the model is unrolled from every row: so many rewards, policies and values are
    learned from it."""
    value_cost: float = 0.25
    """Weight of the loss of the value, against those of policy and model."""
    entropy_cost: float = 0.0
    """Weight of an entropy bonus, without which policies grow surer with every search, and draw
    nothing but what they prefer."""
    n_step: int = 5
    batch_size: int = 16
    min_replay_size: int = 50
    max_replay_size: int = 10_000
    samples_per_insert: float = 16.0
    min_return: float = -150.0
    max_return: float = 150.0

    bounds: ClassVar[AllBounds] = {
        "state_size": (1, 65_536),
        "num_simulations": (1, 10_000),
        "max_considered_actions": (1, 10_000),
        "search_depth": (1, 10_000),
        "value_scale": Above(0.0, 1e3),
        "unroll_steps": (1, 1_000),
        "value_cost": (0.0, 1e6),
        "entropy_cost": (0.0, 1e3),
    }
