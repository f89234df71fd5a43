"""Fields that configs of agents share, with their bounds, and the checks made at construction.

A config is a frozen dataclass that inherits the fields it has in common with others from the
mix-ins below, and gives a field another default by naming it again; its docstring stays:

    @dataclasses.dataclass(frozen=True)
    class MyConfig(OffPolicyConfig, AdamConfig, MLPConfig):
        learning_rate: float = 3e-4
        temperature: float = 1.0
        \"\"\"Of the softmax.\"\"\"

        bounds: ClassVar[AllBounds] = {"temperature": (0.0, None)}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

Bounds = tuple[float | None, float | None]
"""The least and the greatest value; None: there is none."""
AllBounds = Mapping[str, Bounds]
"""By field."""


@dataclasses.dataclass(frozen=True)
class Config:
    """What every agent's config has. A class's `bounds` add to those it inherits."""

    num_envs: int = 1
    """Environments that an actor steps together."""
    steps_per_dispatch: int = 1
    """Gradient steps fused in one dispatch; the pace is kept in lots of this many."""
    discount: float = 0.99
    """gamma, per step."""

    bounds: ClassVar[AllBounds] = {
        "num_envs": (1, None),
        "steps_per_dispatch": (1, None),
        "discount": (0.0, 1.0),
    }

    def __post_init__(self) -> None:
        """Checks the bounds; a class with checks of its own calls this first.

        Raises:
          ValueError: naming the first field that is out of its bounds.
        """
        bounds: dict[str, Bounds] = {}
        for base in reversed(type(self).__mro__):
            bounds |= vars(base).get("bounds", {})
        require(self, **bounds)


@dataclasses.dataclass(frozen=True)
class MLPConfig(Config):
    """Of a network that is an MLP, or the Nature network where observations are images."""

    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of the MLP's hidden layers; images go through the Nature network."""

    bounds: ClassVar[AllBounds] = {"hidden_sizes": (1, None)}


@dataclasses.dataclass(frozen=True)
class AdamConfig(Config):
    """Of gradient descent by Adam."""

    learning_rate: float = 1e-3
    """Step size of Adam."""
    adam_epsilon: float = 1e-8
    """Added to the root of Adam's second moment."""
    max_gradient_norm: float | None = 10.0
    """Gradients are scaled down to this global norm; None leaves them."""

    bounds: ClassVar[AllBounds] = {
        "learning_rate": (0.0, None),
        "adam_epsilon": (0.0, None),
        "max_gradient_norm": (0.0, None),
    }


@dataclasses.dataclass(frozen=True)
class TargetConfig(Config):
    """Of a target network."""

    target_update_period: int = 100
    """Gradient steps between updates of the target network."""
    target_update_rate: float = 1.0
    """Part of the way that the target goes at each update: 1 copies, less is Polyak averaging."""

    bounds: ClassVar[AllBounds] = {
        "target_update_period": (1, None),
        "target_update_rate": (0.0, 1.0),
    }


@dataclasses.dataclass(frozen=True)
class EpsilonGreedyConfig(Config):
    """Of exploration by random actions."""

    epsilon_start: float = 1.0
    """Chance of a random action at the first step."""
    epsilon_end: float = 0.05
    """Chance of a random action after the decay."""
    epsilon_decay_steps: int = 10_000
    """Actor steps, over all environments, in which the chance goes linearly from start to end."""
    evaluation_epsilon: float = 0.0
    """Chance of a random action in evaluation. 0 is greedy."""

    bounds: ClassVar[AllBounds] = {
        "epsilon_start": (0.0, 1.0),
        "epsilon_end": (0.0, 1.0),
        "epsilon_decay_steps": (0, None),
        "evaluation_epsilon": (0.0, 1.0),
    }


@dataclasses.dataclass(frozen=True)
class OffPolicyConfig(Config):
    """Of learning from a replay, at a pace."""

    n_step: int = 1
    """Rewards summed before bootstrapping."""
    batch_size: int = 64
    """Transitions (or sequences) per gradient step."""
    min_replay_size: int = 1_000
    """Transitions (or sequences) collected before learning begins."""
    max_replay_size: int = 100_000
    """Transitions (or sequences) held."""
    samples_per_insert: float = 32.0
    """Transitions (or sequences) drawn per one collected; gradient steps per one collected are this
    / batch_size."""
    steps_per_dispatch: int = 8

    bounds: ClassVar[AllBounds] = {
        "n_step": (1, None),
        "batch_size": (1, None),
        "min_replay_size": (1, None),
        "max_replay_size": (1, None),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples_per_insert <= 0:
            raise ValueError(
                f"samples_per_insert is {self.samples_per_insert}; it must be above 0."
            )
        if self.min_replay_size > self.max_replay_size:
            raise ValueError(
                f"min_replay_size is {self.min_replay_size} and max_replay_size is "
                f"{self.max_replay_size}; learning would never begin."
            )


@dataclasses.dataclass(frozen=True)
class PriorityConfig(OffPolicyConfig):
    """Of prioritised replay."""

    priority_exponent: float | None = None
    """alpha of prioritised replay (Schaul et al., 2016); None samples uniformly."""
    importance_exponent: float = 0.4
    """beta of prioritised replay at the first gradient step."""
    importance_exponent_steps: int = 100_000
    """Gradient steps in which beta goes linearly to 1."""

    bounds: ClassVar[AllBounds] = {
        "priority_exponent": (0.0, None),
        "importance_exponent": (0.0, 1.0),
        "importance_exponent_steps": (0, None),
    }


@dataclasses.dataclass(frozen=True)
class OfflineConfig(Config):
    """Of learning from data alone, in which nobody acts."""

    num_envs: int = 1
    """Always 1: nobody acts but in evaluations, which say themselves how many there are."""
    batch_size: int = 256
    """Transitions (or sequences) per gradient step."""
    steps_per_dispatch: int = 10

    bounds: ClassVar[AllBounds] = {"num_envs": (1, 1), "batch_size": (1, None)}


def require(config: Any, **bounds: Bounds) -> None:
    """Checks that fields lie within closed bounds, of a tuple each number.

    A bound of None is open, a value of None passes.

    Raises:
      ValueError: naming the first field that does not, its value and its bounds.
    """
    for name, (low, high) in bounds.items():
        value = getattr(config, name)
        if value is None:
            continue
        numbers = value if isinstance(value, tuple) else (value,)
        if all((low is None or x >= low) and (high is None or x <= high) for x in numbers):
            continue
        allowed = " and ".join(
            f"{words} {bound}"
            for words, bound in (("at least", low), ("at most", high))
            if bound is not None
        )
        what = "each" if isinstance(value, tuple) else "it"
        raise ValueError(f"{name} is {value}; {what} must be {allowed}.")


def require_choice(config: Any, name: str, choices: tuple[str, ...]) -> None:
    """Checks that a field is one of the choices."""
    value = getattr(config, name)
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(choices)}.")
