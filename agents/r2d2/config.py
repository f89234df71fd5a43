"""Settings of R2D2."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from ..bounds import AllBounds
from ..configs import (
    AdamConfig,
    EpsilonGreedyConfig,
    PriorityConfig,
    RecurrentConfig,
    SequenceConfig,
    TargetConfig,
)


@dataclasses.dataclass(frozen=True)
class R2D2Config(
    PriorityConfig,
    SequenceConfig,
    EpsilonGreedyConfig,
    TargetConfig,
    AdamConfig,
    RecurrentConfig,
):
    """Settings of R2D2. The defaults suit small control tasks; replayed items are sequences."""

    core: Literal["none", "lstm", "gru", "transformer"] = "lstm"
    core_size: int = 64
    hidden_sizes: tuple[int, ...] = (64,)
    """Units of the hidden layers of the torso, where it is an MLP; the last also those of the
    streams of value and advantages behind the core."""
    burn_in: int = 10
    """Steps before those that only warm the memory up."""
    value_rescaling: bool = True
    """Learn signed square roots of returns (Pohlen et al., 2018) instead of the returns."""
    epsilon_exponent: float = 7.0
    """alpha of Ape-X (Horgan et al., 2018): of N environments, number i comes to the chance
    epsilon_end^(1 + alpha i / (N - 1)). 0: all to the same."""
    n_step: int = 5
    priority_exponent: float | None = 0.9
    importance_exponent: float = 0.6
    batch_size: int = 32
    min_replay_size: int = 100
    max_replay_size: int = 10_000

    bounds: ClassVar[AllBounds] = {
        "burn_in": (0, 100_000),
        "epsilon_exponent": (0.0, 1e3),
    }
