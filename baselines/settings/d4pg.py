"""Settings of D4PG."""

from __future__ import annotations

from ..tuned import Tuned

SETTINGS = (
    Tuned(
        "d4pg",
        "Pendulum-v1",
        config={
            "hidden_sizes": (64, 64),
            "discount": 0.98,
            "learning_rate": 1e-3,
            "batch_size": 128,
            "min_replay_size": 1_000,
            "random_steps": 1_000,
            "n_step": 3,
            "min_return": -500.0,
            "max_return": 0.0,
            "target_update_period": 1,
            "target_update_rate": 0.005,
            "samples_per_insert": 128.0,
        },
        steps=10_000,
        target=-200.0,
        source="chosen here",
        evaluation_every=2_000,
    ),
)
