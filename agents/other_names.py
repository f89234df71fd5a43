"""Agents and fields of configs by the names that they have in other libraries."""

from __future__ import annotations

import re
from collections.abc import Collection

AGENTS = {
    "a2c": "impala learns from rollouts as it does",
    "a3c": "impala learns from rollouts of many actors as it does",
    "alphazero": "muzero searches as it does, with a model that it learns",
    "apex": "dqn with --config.priority_exponent 0.6 and --launch processes",
    "appo": "impala learns from rollouts of many actors as it does",
    "ars": "ppo is the nearest",
    "awac": "crr weights actions of the data as it does",
    "awr": "crr weights actions of the data as it does",
    "ddpg": "td3 is its successor, d4pg its form with distributions of returns",
    "ddqn": "dqn is double by itself",
    "dreamer": "muzero is the agent that learns a model",
    "dreamerv3": "muzero is the agent that learns a model",
    "droq": "sac with --config.critic_dropout 0.01 and --config.critic_network layer_norm",
    "her": "relabel goals in a builder of your own (docs/agents.md)",
    "maddpg": "ppo and dqn take the several agents of pettingzoo: ids",
    "marwil": "crr weights actions of the data as it does",
    "maskableppo": "ppo and every agent of discrete actions honour masks",
    "pg": "ppo is the nearest",
    "ppolstm": "ppo with --config.core lstm",
    "qmix": "ppo and dqn take the several agents of pettingzoo: ids",
    "recurrentppo": "ppo with --config.core lstm",
    "redq": "sac with --config.num_critics 10 and --config.num_target_critics 2",
    "reinforce": "ppo is the nearest",
    "td3bc": "iql, cql and crr learn continuous actions from data",
    "tqc": "sac with more --config.num_critics is the nearest",
    "trpo": "ppo is its successor",
}
"""Counterparts of the agents of other libraries, by name without case and punctuation."""

FIELDS: dict[str, tuple[str, ...]] = {
    "action_noise": ("exploration_std",),
    "actor_lr": ("learning_rate",),
    "alpha": ("initial_temperature", "priority_exponent"),
    "anneal_lr": ("anneal_steps", "learning_rate_steps"),
    "autotune": ("target_entropy",),
    "batch_size": ("num_minibatches",),
    "beta": ("importance_exponent",),
    "buffer_size": ("max_replay_size",),
    "clip_coef": ("clip",),
    "clip_param": ("clip",),
    "clip_range": ("clip",),
    "critic_lr": ("learning_rate",),
    "double_q": ("double",),
    "end_e": ("epsilon_end",),
    "ent_coef": ("entropy_cost", "initial_temperature"),
    "entropy_coeff": ("entropy_cost", "initial_temperature"),
    "eps_clip": ("clip",),
    "exploration_final_eps": ("epsilon_end",),
    "exploration_fraction": ("epsilon_decay_steps",),
    "exploration_initial_eps": ("epsilon_start",),
    "exploration_noise": ("exploration_std",),
    "fcnet_hiddens": ("hidden_sizes",),
    "features_extractor_class": ("torso", "hidden_sizes"),
    "gamma": ("discount",),
    "grad_clip": ("max_gradient_norm",),
    "gradient_steps": ("samples_per_insert", "num_epochs"),
    "lambda": ("gae_lambda", "vtrace_lambda"),
    "learning_starts": ("min_replay_size",),
    "lr": ("learning_rate",),
    "lr_schedule": ("learning_rate_schedule",),
    "lstm_hidden_size": ("core_size",),
    "max_grad_norm": ("max_gradient_norm",),
    "minibatch_size": ("num_minibatches", "batch_size"),
    "n_atoms": ("num_atoms",),
    "n_envs": ("num_envs",),
    "n_epochs": ("num_epochs",),
    "n_quantiles": ("num_atoms",),
    "n_steps": ("rollout_length", "n_step"),
    "net_arch": ("hidden_sizes",),
    "noise_clip": ("smoothing_clip",),
    "norm_adv": ("normalize_advantages",),
    "normalize_advantage": ("normalize_advantages",),
    "num_envs_per_env_runner": ("num_envs",),
    "num_epochs": ("num_passes",),
    "num_minibatches": ("batch_size",),
    "num_sgd_iter": ("num_epochs",),
    "num_steps": ("rollout_length", "n_step"),
    "policy_frequency": ("target_update_period",),
    "policy_kwargs": ("hidden_sizes",),
    "policy_lr": ("learning_rate",),
    "policy_noise": ("smoothing_std",),
    "prioritized_replay_alpha": ("priority_exponent",),
    "q_lr": ("learning_rate",),
    "repeat_per_collect": ("num_epochs",),
    "replay_buffer_capacity": ("max_replay_size",),
    "rollout_fragment_length": ("rollout_length", "n_step"),
    "sgd_minibatch_size": ("num_minibatches", "batch_size"),
    "start_e": ("epsilon_start",),
    "step_per_collect": ("rollout_length",),
    "target_network_frequency": ("target_update_period",),
    "target_network_update_freq": ("target_update_period",),
    "target_update_freq": ("target_update_period",),
    "target_update_interval": ("target_update_period",),
    "tau": ("target_update_rate",),
    "train_batch_size": ("batch_size", "rollout_length"),
    "train_freq": ("samples_per_insert",),
    "train_frequency": ("samples_per_insert",),
    "update_epochs": ("num_epochs",),
    "update_per_step": ("samples_per_insert",),
    "use_lstm": ("core",),
    "v_max": ("max_return",),
    "v_min": ("min_return",),
    "vf_coef": ("value_cost",),
    "vf_loss_coeff": ("value_cost",),
}
"""Names in stable-baselines3, CleanRL, RLlib and Tianshou; fields here that come nearest, of which
an agent has one or several."""


def find_agent(name: str) -> str | None:
    """Returns what another library's agent is here; None if nothing is known of it."""
    return AGENTS.get(re.sub(r"[\W_]", "", name.lower()))


def find_fields(name: str, known: Collection[str]) -> list[str]:
    """Returns the fields among `known` that another library's name stands for."""
    return [field for field in FIELDS.get(name.lower(), ()) if field in known]
