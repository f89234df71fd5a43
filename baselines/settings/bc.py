"""Settings of BC."""

from __future__ import annotations

from ..tuned import Tuned

SETTINGS = (
    Tuned(
        "bc",
        "CartPole-v1",
        # To 0 at the end of the budget: the last policies are as good as the best.
        config={"learning_rate_steps": 6_000},
        steps=6_000,
        target=475.0,
        source="chosen here, on 20,000 steps of a DQN that returns 500",
        evaluation_every=1_000,
    ),
    Tuned(
        "bc",
        "Pendulum-v1",
        config={
            "hidden_sizes": (64, 64),
            "learning_rate": 1e-3,
            "batch_size": 256,
            "learning_rate_steps": 10_000,
        },
        steps=10_000,
        target=-200.0,
        source="chosen here, on 20,000 steps of a SAC that returns -157; seed 0 came to -140, "
        "seed 1 to -123",
        evaluation_every=2_000,
    ),
)
