"""Settings of MuZero."""

from __future__ import annotations

from ..tuned import Tuned

SETTINGS = (
    Tuned(
        "muzero",
        "CartPole-v1",
        config={
            "num_envs": 4,
            "hidden_sizes": (64,),
            "state_size": 32,
            "num_simulations": 8,
            "value_scale": 0.005,
            # A horizon of 200 steps sees the end of the track, where one of 50 drifts to it.
            "discount": 0.995,
            "num_atoms": 31,
            "min_return": -220.0,
            "max_return": 220.0,
            "n_step": 20,
            "learning_rate": 1e-3,
            # To 0 at the end of the budget: the last policies are as good as the best.
            "learning_rate_steps": 16_400,
            # Policies of before, of which values are not, leave the replay soon.
            "max_replay_size": 1_000,
            # Sure policies drift off the track by one way, and never see another.
            "entropy_cost": 0.3,
            "target_update_period": 40,
            "samples_per_insert": 64.0,
        },
        steps=45_000,
        target=475.0,
        source="chosen here; seeds 0 to 4 came to 500",
        evaluation_every=3_000,
    ),
    Tuned(
        "muzero",
        "bsuite/catch/0",
        config={
            "num_envs": 4,
            "hidden_sizes": (64,),
            "state_size": 32,
            "num_simulations": 8,
            "value_scale": 0.1,
            "discount": 0.99,
            # An episode's nine steps, so that what it came to is told to each of them.
            "n_step": 10,
            "num_atoms": 21,
            "min_return": -2.0,
            "max_return": 2.0,
            "learning_rate": 2e-3,
            "target_update_period": 40,
            "samples_per_insert": 96.0,
        },
        steps=25_000,
        target=0.95,
        source="chosen here, of an environment whose best return is 1 (Osband et al., 2020, "
        "https://arxiv.org/abs/1908.03568); seeds 0 and 1 came to 1.0",
        evaluation_every=5_000,
    ),
)
