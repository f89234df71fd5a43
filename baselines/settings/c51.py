"""Settings of categorical DQN."""

from __future__ import annotations

from ..tuned import Tuned
from .dqn import CARTPOLE
from .sources import ATARI, ZOO

SETTINGS = (
    Tuned(
        "c51",
        "CartPole-v1",
        # No discounted return is greater than 1 / (1 - 0.99).
        config={**CARTPOLE, "double": True, "min_return": 0.0, "max_return": 100.0},
        steps=50_000,
        target=475.0,
        source=ZOO.format("dqn") + ", as those of dqn",
    ),
    Tuned(
        "c51",
        "ALE/Pong-v5",
        config={
            "learning_rate": 2.5e-4,
            "adam_epsilon": 0.01 / 32,
            "batch_size": 32,
            "max_replay_size": 1_000_000,
            "min_replay_size": 50_000,
            "target_update_period": 2_500,
            "samples_per_insert": 8.0,
            "steps_per_dispatch": 4,
            "epsilon_end": 0.01,
            "epsilon_decay_steps": 1_000_000,
            "evaluation_epsilon": 0.001,
        },
        steps=10_000_000,
        target=18.0,
        source="Bellemare et al. (2017), https://arxiv.org/abs/1707.06887, section 5",
        training_environment=ATARI,
        evaluation_every=250_000,
    ),
)
