"""Configs: the fields of agents, their defaults, and what is refused."""

import dataclasses

import pytest

from troupe import environments
from troupe.agents import OffPolicyBuilder
from troupe.agents.configs import (
    AdamConfig,
    EpsilonGreedyConfig,
    MLPConfig,
    OffPolicyConfig,
    PriorityConfig,
    TargetConfig,
)
from troupe.agents.dqn import C51Config, DQNConfig, QRDQNConfig, RainbowConfig
from troupe.agents.ppo import PPOConfig
from troupe.agents.r2d2 import R2D2Config
from troupe.agents.replay import Transitions
from troupe.agents.sac import SACConfig

# A checkpoint belongs to a run by these: a changed default would make those of before another's. A
# further field does not (`check_identity`).
COURSE = {
    "learning_rate_schedule": "linear",
    "learning_rate_steps": None,
    "learning_rate_warmup_steps": 0,
}
DQN = {
    **COURSE,
    "torso": "auto",
    "hidden_sizes": (256, 256),
    "dueling": False,
    "double": True,
    "n_step": 1,
    "discount": 0.99,
    "learning_rate": 1e-3,
    "adam_epsilon": 1e-8,
    "max_gradient_norm": 10.0,
    "loss": "huber",
    "huber_threshold": 1.0,
    "distribution": "none",
    "num_atoms": 51,
    "min_return": -10.0,
    "max_return": 10.0,
    "munchausen_scale": None,
    "munchausen_temperature": 0.03,
    "munchausen_least": -1.0,
    "noisy_std": None,
    "target_update_period": 100,
    "target_update_rate": 1.0,
    "epsilon_start": 1.0,
    "epsilon_end": 0.05,
    "epsilon_decay_steps": 10_000,
    "evaluation_epsilon": 0.0,
    "batch_size": 64,
    "min_replay_size": 1_000,
    "max_replay_size": 100_000,
    "samples_per_insert": 32.0,
    "priority_exponent": None,
    "importance_exponent": 0.4,
    "importance_exponent_steps": 100_000,
    "steps_per_dispatch": 8,
    "num_envs": 1,
}
RECURRENT = {
    "torso": "auto",
    "torso_width": 1,
    "core": "none",
    "core_size": 128,
    "core_layers": 1,
    "core_heads": 4,
    "core_loop": True,
    "memory_length": 32,
    "dtype": "float32",
}
PPO = {
    **COURSE,
    **RECURRENT,
    "target_kl": None,
    "hidden_sizes": (64, 64),
    "num_envs": 8,
    "rollout_length": 128,
    "num_epochs": 4,
    "num_minibatches": 4,
    "discount": 0.99,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "entropy_cost": 0.0,
    "value_cost": 0.5,
    "learning_rate": 3e-4,
    "adam_epsilon": 1e-5,
    "max_gradient_norm": 0.5,
    "anneal_steps": None,
    "normalize_advantages": True,
    "normalize_observations": False,
    "initial_log_std": 0.0,
    "steps_per_dispatch": 1,
}
C51 = {**DQN, "distribution": "categorical", "double": False}
QRDQN = {**DQN, "distribution": "quantile", "double": False, "num_atoms": 200}
RAINBOW = {
    **DQN,
    "distribution": "categorical",
    "dueling": True,
    "n_step": 3,
    "priority_exponent": 0.5,
    "noisy_std": 0.5,
    "epsilon_start": 0.0,
    "epsilon_end": 0.0,
}


SAC = {
    **COURSE,
    **{name: value for name, value in RECURRENT.items() if name not in ("torso_width", "dtype")},
    "burn_in": 10,
    "sequence_length": 20,
    "sequence_period": 10,
    "torso": "auto",
    "critic_network": "mlp",
    "critic_hidden_sizes": None,
    "num_target_critics": None,
    "critic_dropout": 0.0,
    "critic_loss": "squared",
    "num_atoms": 101,
    "min_return": -100.0,
    "max_return": 100.0,
    "hidden_sizes": (256, 256),
    "n_step": 1,
    "discount": 0.99,
    "learning_rate": 3e-4,
    "adam_epsilon": 1e-8,
    "max_gradient_norm": None,
    "target_update_period": 1,
    "target_update_rate": 0.005,
    "initial_temperature": 1.0,
    "target_entropy": None,
    "num_critics": 2,
    "random_steps": 0,
    "batch_size": 256,
    "min_replay_size": 1_000,
    "max_replay_size": 100_000,
    "samples_per_insert": 256.0,
    "steps_per_dispatch": 8,
    "num_envs": 1,
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (DQNConfig, DQN),
        (PPOConfig, PPO),
        (C51Config, C51),
        (QRDQNConfig, QRDQN),
        (RainbowConfig, RAINBOW),
        (SACConfig, SAC),
    ],
)
def test_fields_and_defaults_are_those_that_checkpoints_know(config, expected):
    assert dataclasses.asdict(config()) == expected


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (
            MLPConfig,
            {"hidden_sizes": (64, 0)},
            r"is \(64, 0\); each must be at least 1",
        ),
        (AdamConfig, {"learning_rate": -1.0}, "learning_rate is -1.0; it must be at least 0.0"),
        (AdamConfig, {"num_envs": 0}, "num_envs is 0; it must be at least 1"),
        (TargetConfig, {"target_update_rate": 1.5}, "must be above 0.0 and at most 1.0"),
        (EpsilonGreedyConfig, {"epsilon_end": 2}, "epsilon_end is 2; it must be at least 0.0"),
        (OffPolicyConfig, {"samples_per_insert": 0.0}, "must be above 0"),
        (OffPolicyConfig, {"max_replay_size": 10}, "learning would never begin"),
        (PriorityConfig, {"importance_exponent": 2.0}, "importance_exponent is 2.0"),
        (DQNConfig, {"discount": 1.1}, "discount is 1.1"),
        (DQNConfig, {"loss": "absolute"}, "must be one of huber, squared"),
        (C51Config, {"distribution": "normal"}, "must be one of none, categorical, quantile"),
        (C51Config, {"loss": "squared"}, "which has a loss of its own"),
        (R2D2Config, {"sequence_period": 21}, "there are steps that are never learned from"),
        (C51Config, {"min_return": 10.0}, "the least return must be below the greatest"),
        (DQNConfig, {"min_replay_size": 10**6}, "learning would never begin"),
        (PPOConfig, {"steps_per_dispatch": 2}, "steps_per_dispatch is 2; .* at most 1"),
        (PPOConfig, {"num_minibatches": 3}, "it must divide num_envs"),
        (PPOConfig, {"num_minibatches": 16, "core": "gru"}, "it must divide num_envs = 8"),
        (PPOConfig, {"core": "gri"}, "core is 'gri'; it must be one of none, lstm, gru, trans"),
        (PPOConfig, {"torso": "resnet"}, "torso is 'resnet'; .* or MODULE:NAME of a function of"),
        (DQNConfig, {"torso": "module:"}, "torso is 'module:'; it must be one of auto, nature"),
        (SACConfig, {"torso": 3}, "torso is 3; it must be a text"),
        (DQNConfig, {"torso": dataclasses.replace}, "the text MODULE:NAME by which"),
        (PPOConfig, {"core": "transformer", "core_size": 10}, "core_heads must divide core_size"),
    ],
)
def test_a_value_out_of_bounds_is_named_with_them(config, values, message):
    with pytest.raises(ValueError, match=message):
        config(**values)


def test_none_passes_where_a_field_may_be_none():
    assert DQNConfig(max_gradient_norm=None, learning_rate_steps=None).max_gradient_norm is None


@dataclasses.dataclass(frozen=True)
class UniformConfig(OffPolicyConfig, AdamConfig):
    batch_size: int = 16


class Uniform(OffPolicyBuilder):
    """States what an off-policy agent must: networks, policy, update."""

    name = "uniform"
    config_class = UniformConfig

    def make_networks(self, spec):
        return None

    def make_policy(self, networks, spec, *, evaluation=False, num_streams=1):
        raise NotImplementedError

    def make_update(self, networks, spec):
        raise NotImplementedError


def test_an_off_policy_agent_has_its_replay_from_its_config():
    with environments.make("fake/discrete", seed=0) as environment:
        spec = environments.make_spec(environment)
    config = UniformConfig(n_step=3, discount=0.9, max_replay_size=5_000, samples_per_insert=2.0)
    replay = Uniform(config).make_replay_spec(spec)
    assert replay.item == Transitions(3, 0.9)
    assert (replay.batch_size, replay.min_size, replay.max_size) == (16, 1_000, 5_000)
    assert (replay.samples_per_insert, replay.priority_exponent) == (2.0, None)
