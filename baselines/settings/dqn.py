"""Settings of DQN."""

from __future__ import annotations

from ..tuned import Tuned
from .sources import ATARI, NATURE, ZOO

CARTPOLE_ZOO = {
    "hidden_sizes": (256, 256),
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "max_replay_size": 100_000,
    "min_replay_size": 1_000,
    # The zoo's period of 10 counts steps of the environment, of which none is taken in the course
    # of 128 gradient steps.
    "target_update_period": 128,
    "samples_per_insert": 32.0,
    "steps_per_dispatch": 128,
    "epsilon_end": 0.04,
    "epsilon_decay_steps": 8_000,
}
"""The zoo's settings on CartPole-v1, which the speed benchmark runs as well, not double."""

CARTPOLE = {
    **CARTPOLE_ZOO,
    "n_step": 5,
    # To 0 at the end of the budget: the last policies are as good as the best.
    "learning_rate_steps": 24_500,
}
"""Of CartPole-v1 in 50,000 steps, which the agents of the family begin from."""

_SMALL_ZOO = {
    "hidden_sizes": (256, 256),
    "learning_rate": 6.3e-4,
    "batch_size": 128,
    "max_replay_size": 50_000,
    "min_replay_size": 1_000,
    "target_update_period": 250,
    "samples_per_insert": 128.0,
    "steps_per_dispatch": 4,
    "epsilon_end": 0.1,
    "epsilon_decay_steps": 12_000,
}
"""The zoo's of other small tasks."""

SETTINGS = (
    Tuned(
        "dqn",
        "CartPole-v1",
        config=CARTPOLE,
        steps=50_000,
        target=475.0,
        source=ZOO.format("dqn") + ", made double, 5-step, with a falling step size",
    ),
    Tuned(
        "dqn",
        "Acrobot-v1",
        config={**_SMALL_ZOO, "double": False},
        steps=100_000,
        target=-100.0,
        source=ZOO.format("dqn"),
    ),
    Tuned(
        "dqn",
        "LunarLander-v3",
        config=_SMALL_ZOO,
        steps=100_000,
        target=200.0,
        source=ZOO.format("dqn") + ", made double",
    ),
    Tuned(
        "dqn",
        "ALE/Pong-v5",
        config={
            "double": True,
            "learning_rate": 1e-4,
            "batch_size": 32,
            "max_replay_size": 1_000_000,
            "min_replay_size": 50_000,
            "target_update_period": 1_000,
            "samples_per_insert": 8.0,
            "steps_per_dispatch": 4,
            "epsilon_end": 0.01,
            "epsilon_decay_steps": 1_000_000,
            "evaluation_epsilon": 0.001,
        },
        steps=10_000_000,
        target=18.0,
        source=f"{NATURE}; learning rate and exploration of {ZOO.format('dqn')}",
        training_environment=ATARI,
        evaluation_every=250_000,
    ),
)
