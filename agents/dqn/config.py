"""What can be set of DQN."""

from __future__ import annotations

import dataclasses

from ..configs import require, require_choice


@dataclasses.dataclass(frozen=True)
class DQNConfig:
    """Settings of DQN and its well-known additions. The defaults suit small control tasks."""

    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of the MLP's hidden layers; images go through the Nature network."""
    dueling: bool = False
    """Estimate state value and advantages apart (Wang et al., 2016)."""
    double: bool = True
    """Choose the bootstrapped action by the online network (van Hasselt et al., 2016)."""
    n_step: int = 1
    """Rewards summed before bootstrapping."""
    discount: float = 0.99
    """gamma, per step."""
    learning_rate: float = 1e-3
    """Step size of Adam."""
    learning_rate_steps: int | None = None
    """Gradient steps in which the step size goes linearly to 0; None keeps it."""
    adam_epsilon: float = 1e-8
    """Added to the root of Adam's second moment."""
    max_gradient_norm: float | None = 10.0
    """Gradients are scaled down to this global norm; None leaves them."""
    loss: str = "huber"
    """huber or squared."""
    huber_threshold: float = 1.0
    """Error at which the Huber loss turns linear."""
    target_update_period: int = 100
    """Gradient steps between updates of the target network."""
    target_update_rate: float = 1.0
    """Part of the way that the target goes at each update: 1 copies, less is Polyak averaging."""
    epsilon_start: float = 1.0
    """Chance of a random action at the first step."""
    epsilon_end: float = 0.05
    """Chance of a random action after the decay."""
    epsilon_decay_steps: int = 10_000
    """Actor steps, over all environments, in which the chance goes linearly from start to end."""
    evaluation_epsilon: float = 0.0
    """Chance of a random action in evaluation. 0 is greedy."""
    batch_size: int = 64
    """Transitions per gradient step."""
    min_replay_size: int = 1_000
    """Transitions collected before learning begins."""
    max_replay_size: int = 100_000
    """Transitions held."""
    samples_per_insert: float = 32.0
    """Transitions drawn per transition collected; gradient steps per step are this / batch_size."""
    priority_exponent: float | None = None
    """alpha of prioritised replay (Schaul et al., 2016); None samples uniformly."""
    importance_exponent: float = 0.4
    """beta of prioritised replay at the first gradient step."""
    importance_exponent_steps: int = 100_000
    """Gradient steps in which beta goes linearly to 1."""
    steps_per_dispatch: int = 8
    """Gradient steps fused in one dispatch; the pace is kept in lots of this many."""
    num_envs: int = 1
    """Environments that an actor steps together."""

    def __post_init__(self):
        require_choice(self, "loss", ("huber", "squared"))
        require(
            self,
            n_step=(1, None),
            discount=(0.0, 1.0),
            learning_rate=(0.0, None),
            learning_rate_steps=(1, None),
            adam_epsilon=(0.0, None),
            max_gradient_norm=(0.0, None),
            huber_threshold=(0.0, None),
            target_update_period=(1, None),
            target_update_rate=(0.0, 1.0),
            epsilon_start=(0.0, 1.0),
            epsilon_end=(0.0, 1.0),
            epsilon_decay_steps=(0, None),
            evaluation_epsilon=(0.0, 1.0),
            batch_size=(1, None),
            min_replay_size=(1, None),
            max_replay_size=(1, None),
            priority_exponent=(0.0, None),
            importance_exponent=(0.0, 1.0),
            importance_exponent_steps=(0, None),
            steps_per_dispatch=(1, None),
            num_envs=(1, None),
        )
        if self.samples_per_insert <= 0:
            raise ValueError(
                f"samples_per_insert is {self.samples_per_insert}; it must be above 0."
            )
        if any(size < 1 for size in self.hidden_sizes):
            raise ValueError(f"hidden_sizes is {self.hidden_sizes}; each must be at least 1.")
        if self.min_replay_size > self.max_replay_size:
            raise ValueError(
                f"min_replay_size is {self.min_replay_size} and max_replay_size is "
                f"{self.max_replay_size}; learning would never begin."
            )
