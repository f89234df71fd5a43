"""Settings of D4PG."""

from __future__ import annotations

from ..tuned import Tuned

_SMALL = {
    "hidden_sizes": (64, 64),
    "discount": 0.98,
    "learning_rate": 1e-3,
    "batch_size": 128,
    "min_replay_size": 1_000,
    "random_steps": 1_000,
    "n_step": 3,
    "target_update_period": 1,
    "target_update_rate": 0.005,
    "samples_per_insert": 128.0,
}

SETTINGS = (
    Tuned(
        "d4pg",
        "InvertedPendulum-v5",
        config={**_SMALL, "min_return": 0.0, "max_return": 50.0},
        steps=20_000,
        target=950.0,
        source="chosen here; seeds 0 and 1 came to 1000",
        evaluation_every=4_000,
    ),
    Tuned(
        "d4pg",
        "Pendulum-v1",
        config={**_SMALL, "min_return": -500.0, "max_return": 0.0},
        steps=10_000,
        target=-200.0,
        source="chosen here",
        evaluation_every=2_000,
    ),
)
