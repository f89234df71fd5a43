"""Settings of IMPALA."""

from __future__ import annotations

from ..tuned import Tuned
from .sources import ATARI, IMPALA

_STEPS = 32 * 20
"""Of a published batch, over which losses are summed there, and are means here."""

SETTINGS = (
    Tuned(
        "impala",
        "CartPole-v1",
        config={
            "hidden_sizes": (64, 64),
            "num_envs": 8,
            "rollout_length": 20,
            # A gradient step for each window: with fewer of them values are so wrong that policies
            # come to drift off the track.
            "batch_size": 1,
            "learning_rate": 7e-4,
            "vtrace_lambda": 0.95,
            "entropy_cost": 0.5,
            "max_gradient_norm": None,
            "anneal_steps": 300_000,
        },
        steps=300_000,
        target=475.0,
        source="chosen here; seeds 0 to 4 came to 446, 489, 500, 500, 500",
        evaluation_every=15_000,
    ),
    Tuned(
        "normalized+impala",
        "CartPoleMasked-v1",
        config={
            "core": "gru",
            "core_size": 64,
            "hidden_sizes": (64,),
            "num_envs": 8,
            "rollout_length": 32,
            "batch_size": 2,
            "num_passes": 2,
            "learning_rate": 1e-3,
            # Without it policies are soon sure, and drift off the track by one way.
            "entropy_cost": 0.3,
            # Returns of hundreds would drown the policy in the torso that both have.
            "value_cost": 0.003,
            "anneal_steps": 600_000,
        },
        steps=600_000,
        target=400.0,
        source="chosen here; seeds 0 to 4 came to 500",
        evaluation_every=30_000,
    ),
    Tuned(
        "impala",
        "MinAtar/Breakout-v1",
        config={
            "hidden_sizes": (128,),
            "num_envs": 32,
            "rollout_length": 20,
            "batch_size": 32,
            "learning_rate": 1e-3,
            "anneal_steps": 3_000_000,
        },
        steps=3_000_000,
        target=6.0,
        # Its games have no end of their own where the ball is never lost.
        environment={"max_episode_steps": 5_000},
        source="chosen here; seed 0 came to 5.9; actions drawn uniformly come to 0.4",
        evaluation_every=300_000,
    ),
    Tuned(
        "impala",
        "ALE/Pong-v5",
        config={
            "torso": "residual",
            "num_envs": 32,
            "rollout_length": 20,
            "batch_size": 32,
            "entropy_cost": 0.01,
            "optimizer": "rmsprop",
            "learning_rate": 6e-4,
            "rmsprop_decay": 0.99,
            "rmsprop_epsilon": 0.01 / _STEPS**2,
            "max_gradient_norm": 40.0 / _STEPS,
            "anneal_steps": 50_000_000,
        },
        steps=50_000_000,
        target=18.0,
        source=f"{IMPALA}, whose 200 million frames are as many steps; sums as means",
        training_environment=ATARI,
        evaluation_every=1_000_000,
    ),
)
