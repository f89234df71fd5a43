"""Settings of PPO."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal  # noqa: F401 - Literal: of inherited fields, read here

from ..bounds import MOST_STEPS, Above, AllBounds
from ..configs import AdamConfig, RecurrentConfig, forbid_two_schedules


@dataclasses.dataclass(frozen=True)
class PPOConfig(AdamConfig, RecurrentConfig):
    """Settings of proximal policy optimisation. The defaults suit small control tasks."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of the hidden layers of policy and value, each an MLP; on images, or with a core, one
    torso is of both."""
    num_envs: int = 8
    rollout_length: int = 128
    """Steps of every environment that an update learns from."""
    num_epochs: int = 4
    """Passes over a rollout."""
    num_minibatches: int = 4
    """Parts of a pass, each one gradient step; divides num_envs * rollout_length, and with a core,
    which learns from whole rollouts, num_envs."""
    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation."""
    clip: float = 0.2
    """Distance from 1 that the ratio of new to old probabilities is rewarded for."""
    target_kl: float | None = None
    """Distance that the policy may go from the one that acted, in nats: once a minibatch has it at
    more than 1.5 times this, the rest of the passes is left out. None leaves nothing out."""
    entropy_cost: float = 0.0
    """Weight of the entropy bonus."""
    value_cost: float = 0.5
    """Weight of the value's squared error."""
    learning_rate: float = 3e-4
    adam_epsilon: float = 1e-5
    max_gradient_norm: float | None = 0.5
    anneal_steps: int | None = None
    """Actor steps in which learning rate and clip go linearly to 0; None keeps them."""
    normalize_advantages: bool = True
    """Advantages of every minibatch to mean 0 and deviation 1."""
    normalize_observations: bool = False
    """Observations to mean 0 and deviation 1, by running statistics."""
    initial_log_std: float = 0.0
    """Logarithm of the standard deviation of continuous actions at the start."""
    steps_per_dispatch: int = 1
    """Updates in one dispatch. On-policy learning has one."""

    bounds: ClassVar[AllBounds] = {
        "rollout_length": (1, 100_000),
        "num_epochs": (1, 1_000),
        "num_minibatches": (1, 1_000_000),
        "gae_lambda": (0.0, 1.0),
        "clip": Above(0.0, 100.0),
        "target_kl": Above(0.0, 1e3),
        "entropy_cost": (0.0, 1e3),
        "value_cost": (0.0, 1e3),
        "anneal_steps": (1, MOST_STEPS),
        # Of an action's deviation; outside, it is 0 or beyond all bounds in 32 bits.
        "initial_log_std": (-20.0, 20.0),
        "steps_per_dispatch": (1, 1),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        forbid_two_schedules(self)
        rows = self.num_envs * (1 if self.is_recurrent else self.rollout_length)
        if rows % self.num_minibatches:
            what = "num_envs" if self.is_recurrent else "num_envs * rollout_length"
            raise ValueError(
                f"num_minibatches is {self.num_minibatches}; it must divide {what} = {rows}."
            )
