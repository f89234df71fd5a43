"""Settings of quantile regression DQN."""

from __future__ import annotations

from ..tuned import Tuned
from .dqn import CARTPOLE
from .sources import ZOO

SETTINGS = (
    Tuned(
        "qrdqn",
        "CartPole-v1",
        config={**CARTPOLE, "double": True, "num_atoms": 10},
        steps=50_000,
        target=475.0,
        source=ZOO.format("qrdqn") + ", made double, 5-step, with a falling step size",
    ),
    Tuned(
        "qrdqn",
        "LunarLander-v3",
        config={
            "hidden_sizes": (256, 256),
            "num_atoms": 170,
            "discount": 0.995,
            "learning_rate": 1.5e-3,
            "learning_rate_steps": 90_000,
            "batch_size": 128,
            "max_replay_size": 100_000,
            "min_replay_size": 10_000,
            # The zoo's target follows at every step of the environment, of which none is taken in
            # the course of 256 gradient steps.
            "target_update_period": 256,
            "samples_per_insert": 128.0,
            "steps_per_dispatch": 256,
            "epsilon_end": 0.18,
            "epsilon_decay_steps": 24_000,
        },
        steps=100_000,
        target=200.0,
        source=ZOO.format("qrdqn"),
    ),
)
