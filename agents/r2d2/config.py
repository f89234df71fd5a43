"""What can be set of R2D2."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from ..bounds import MOST_STEPS, AllBounds
from ..configs import (
    AdamConfig,
    EpsilonGreedyConfig,
    PriorityConfig,
    RecurrentConfig,
    TargetConfig,
)


@dataclasses.dataclass(frozen=True)
class R2D2Config(PriorityConfig, EpsilonGreedyConfig, TargetConfig, AdamConfig, RecurrentConfig):
    """Settings of R2D2. The defaults suit small control tasks; replayed items are sequences."""

    core: Literal["none", "lstm", "gru", "transformer"] = "lstm"
    core_size: int = 64
    hidden_sizes: tuple[int, ...] = (64,)
    """Units of the hidden layers of the torso, where it is an MLP; the last also those of the
    streams of value and advantages behind the core."""
    sequence_length: int = 20
    """Steps of a sequence that are learned from."""
    sequence_period: int = 10
    """Steps from the start of one sequence to that of the next."""
    burn_in: int = 10
    """Steps before those that only warm the memory up."""
    value_rescaling: bool = True
    """Learn signed square roots of returns (Pohlen et al., 2018) instead of the returns."""
    learning_rate_steps: int | None = None
    """Gradient steps in which the step size goes linearly to 0; None keeps it."""
    priority_mix: float = 0.9
    """eta: part of a sequence's priority that is its greatest error; the rest is the mean."""
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
        "sequence_length": (1, 100_000),
        "sequence_period": (1, 100_000),
        "burn_in": (0, 100_000),
        "learning_rate_steps": (1, MOST_STEPS),
        "priority_mix": (0.0, 1.0),
        "epsilon_exponent": (0.0, 1e3),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequence_period > self.sequence_length:
            raise ValueError(
                f"sequence_period is {self.sequence_period} and sequence_length is "
                f"{self.sequence_length}; with a period greater than the length there are steps "
                "that are never learned from."
            )
