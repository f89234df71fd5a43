"""Settings of IMPALA."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from ..bounds import MOST_STEPS, Above, AllBounds
from ..configs import AdamConfig, RecurrentConfig, forbid_two_schedules


@dataclasses.dataclass(frozen=True)
class IMPALAConfig(AdamConfig, RecurrentConfig):
    """Settings of IMPALA. The defaults suit small control tasks."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    num_envs: int = 8
    rollout_length: int = 20
    """Steps of a window, which wait in a queue and are learned from in the order of acting."""
    batch_size: int = 8
    """Windows per gradient step."""
    num_passes: int = 1
    """Gradient steps on each batch, each with ratios of its own."""
    vtrace_lambda: float = 1.0
    """Mixes V-trace's one-step estimates (0) and whole returns (1)."""
    clip_ratio: float = 1.0
    """rho bar: the greatest ratio of new to old probabilities by which a step counts."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""
    value_cost: float = 0.5
    """Weight of the value's squared error."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Optimizer, which makes steps of gradients."""
    learning_rate: float = 1e-3
    """Step size of the optimizer."""
    rmsprop_decay: float = 0.99
    """Of RMSProp's second moment, per gradient step."""
    rmsprop_epsilon: float = 1e-5
    """Added to RMSProp's second moment, under the root."""
    max_gradient_norm: float | None = 0.5
    anneal_steps: int | None = None
    """Actor steps in which the learning rate goes linearly to 0; None keeps it."""
    initial_log_std: float = 0.0
    """Logarithm of the standard deviation of continuous actions at the start."""

    bounds: ClassVar[AllBounds] = {
        "rollout_length": (1, 100_000),
        "batch_size": (1, 1_000_000),
        "num_passes": (1, 1_000),
        "vtrace_lambda": (0.0, 1.0),
        "clip_ratio": Above(0.0, 1e3),
        "entropy_cost": (0.0, 1e3),
        "value_cost": (0.0, 1e3),
        "rmsprop_decay": (0.0, 1.0),
        # Less is 0 in 32 bits, and a gradient of 0 would be divided by it.
        "rmsprop_epsilon": (1e-30, 1e3),
        "anneal_steps": (1, MOST_STEPS),
        # Of an action's deviation; outside, it is 0 or beyond all bounds in 32 bits.
        "initial_log_std": (-20.0, 20.0),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        forbid_two_schedules(self)
