"""Settings of R2D2."""

from __future__ import annotations

from ..tuned import Tuned

_CONFIG = {
    "num_envs": 4,
    "core_size": 64,
    "hidden_sizes": (64,),
    "sequence_length": 20,
    "sequence_period": 10,
    "burn_in": 10,
    "learning_rate": 1e-3,
    # To 0 at the end of the budget: the last policies are as good as the best.
    "learning_rate_steps": 7_000,
    "batch_size": 32,
    "min_replay_size": 100,
    "max_replay_size": 10_000,
    "samples_per_insert": 48.0,
    "steps_per_dispatch": 4,
    "target_update_period": 100,
    "epsilon_end": 0.2,
    "epsilon_exponent": 3.0,
    "epsilon_decay_steps": 10_000,
}
_SOURCE = "chosen here; sequences, priorities and rescaling of Kapturowski et al. (2019)"

SETTINGS = (
    Tuned(
        "r2d2",
        "CartPole-v1",
        config=_CONFIG,
        steps=50_000,
        target=475.0,
        source=_SOURCE + "; seeds 0 to 4 came to 500, 499, 500, 500, 500",
    ),
    Tuned(
        "r2d2",
        "CartPoleMasked-v1",
        config=_CONFIG,
        steps=50_000,
        target=400.0,
        source=_SOURCE + "; seeds 0 to 4 came to 499, 438, 401, 498, 184",
    ),
    Tuned(
        "normalized+r2d2",
        "CartPoleMasked-v1",
        config={
            **_CONFIG,
            "core": "transformer",
            "core_size": 32,
            "core_heads": 2,
            "memory_length": 8,
        },
        steps=50_000,
        target=400.0,
        source=_SOURCE + ", with a gated transformer; seeds 0 to 4 came to 500, 500, 496, 500, 493",
    ),
)
