"""Tuned settings: one row for each agent and environment that is known to go well together."""

from __future__ import annotations

from .tuned import Tuned

_ZOO = "rl-baselines3-zoo, hyperparams/{}.yml (https://github.com/DLR-RM/rl-baselines3-zoo)"
_NATURE = "Mnih et al. (2015), https://doi.org/10.1038/nature14236, extended data table 1"

_ATARI = {"reward_clip": 1.0, "episodic_life": True}

PPO_CARTPOLE_ZOO = {
    "num_envs": 8,
    "rollout_length": 32,
    "num_epochs": 20,
    "num_minibatches": 1,
    "gae_lambda": 0.8,
    "discount": 0.98,
    "learning_rate": 1e-3,
    "clip": 0.2,
    "anneal_steps": 100_000,
}
"""The zoo's settings of PPO on CartPole-v1, which the speed benchmark runs as well."""

SETTINGS: tuple[Tuned, ...] = (
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
        "dqn",
        "CartPole-v1",
        config={
            "hidden_sizes": (256, 256),
            "n_step": 5,
            "learning_rate": 2.3e-3,
            # To 0 at the end of the budget: the last policies are as good as the best.
            "learning_rate_steps": 24_500,
            "batch_size": 64,
            "max_replay_size": 100_000,
            "min_replay_size": 1_000,
            "target_update_period": 128,
            "samples_per_insert": 32.0,
            "steps_per_dispatch": 128,
            "epsilon_end": 0.04,
            "epsilon_decay_steps": 8_000,
        },
        steps=50_000,
        target=475.0,
        # The zoo's period of 10 counts steps of the environment, of which none is taken in the
        # course of 128 gradient steps.
        source=_ZOO.format("dqn") + ", made double, 5-step, with a falling step size",
    ),
    Tuned(
        "dqn",
        "Acrobot-v1",
        config={
            "hidden_sizes": (256, 256),
            "double": False,
            "learning_rate": 6.3e-4,
            "batch_size": 128,
            "max_replay_size": 50_000,
            "min_replay_size": 1_000,
            "target_update_period": 250,
            "samples_per_insert": 128.0,
            "steps_per_dispatch": 4,
            "epsilon_end": 0.1,
            "epsilon_decay_steps": 12_000,
        },
        steps=100_000,
        target=-100.0,
        source=_ZOO.format("dqn"),
    ),
    Tuned(
        "dqn",
        "LunarLander-v3",
        config={
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
        },
        steps=100_000,
        target=200.0,
        source=_ZOO.format("dqn") + ", made double",
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
        source=f"{_NATURE}; learning rate and exploration of {_ZOO.format('dqn')}",
        training_environment=_ATARI,
        evaluation_every=250_000,
    ),
    Tuned(
        "ppo",
        "CartPole-v1",
        config=PPO_CARTPOLE_ZOO,
        steps=100_000,
        target=475.0,
        source=_ZOO.format("ppo"),
        evaluation_every=5_000,
    ),
    Tuned(
        "ppo",
        "Pendulum-v1",
        config={
            "num_envs": 4,
            "rollout_length": 1024,
            "num_epochs": 10,
            "num_minibatches": 64,
            "gae_lambda": 0.95,
            "discount": 0.9,
            "learning_rate": 1e-3,
            "clip": 0.2,
        },
        steps=300_000,
        target=-200.0,
        source=_ZOO.format("ppo") + ", without state-dependent exploration",
    ),
)


def find(agent: str, env: str) -> Tuned | None:
    """The tuned settings, or None where there are none."""
    for settings in SETTINGS:
        if (settings.agent, settings.env) == (agent, env):
            return settings
    return None
