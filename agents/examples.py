"""Examples for the partitioner: the models of `partitioning`, and every agent's real update."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from ..environments.specs import AnswerArray, EnvironmentSpec
from ..partitioning import models
from ..partitioning.models.example import DATA_AND_MODEL, Example
from .catalogue import find_builder

#: Agents whose updates are steps here, and the sizes of their configs that keep a test short.
AGENTS: dict[str, dict[str, Any]] = {
    "c51": {"batch_size": 16, "hidden_sizes": (16, 16), "num_atoms": 11},
    "d4pg": {"batch_size": 16, "hidden_sizes": (16, 16), "num_atoms": 11},
    "dqn": {"batch_size": 16, "hidden_sizes": (16, 16), "priority_exponent": 0.6, "double": True},
    "impala": {"num_envs": 8, "rollout_length": 6, "hidden_sizes": (16, 16)},
    "mpo": {"batch_size": 16, "hidden_sizes": (16, 16), "num_samples": 4},
    "ppo": {"num_envs": 8, "rollout_length": 6, "hidden_sizes": (16, 16), "num_minibatches": 2},
    "r2d2": {
        "batch_size": 16,
        "hidden_sizes": (16,),
        "core_size": 16,
        "sequence_length": 5,
        "sequence_period": 5,
        "burn_in": 2,
        "n_step": 2,
    },
    "sac": {"batch_size": 16, "hidden_sizes": (16, 16)},
    "td3": {"batch_size": 16, "hidden_sizes": (16, 16)},
}
_TOKENS = 32
_SMALL = {"batch_size": 16, "hidden_sizes": (16, 16)}
#: The other agents: searches plan them, and what tests do with every step would take long.
FURTHER: dict[str, dict[str, Any]] = {
    **{name: {**_SMALL} for name in ("bc", "cql", "crr", "iql", "qrdqn")},
    "rainbow": {**_SMALL, "num_atoms": 11},
    "grpo": {"width": 16, "num_layers": 2, "num_heads": 2, "supervised_steps": 1},
    "muzero": {
        "batch_size": 16,
        "hidden_sizes": (16,),
        "state_size": 16,
        "num_simulations": 4,
        "num_atoms": 11,
    },
}
#: Those that drive a box, of so many numbers as there are actions elsewhere.
BOXED = ("cql", "d4pg", "sac", "td3")
#: Those that answer prompts of so many tokens as there are features elsewhere, in groups of so many
#: as there are actions.
ANSWERING = ("grpo",)
#: Every step, by name.
NAMES = (*models.CATALOGUE, *AGENTS)


def make(name: str, **sizes: Any) -> Example:
    """The model or the agent's update of that name.

    Args:
      name: one of `NAMES` or `FURTHER`.
      **sizes: fields of the model's config; or of the agent's, and how many `features` an
        observation has and how many `actions` there are, or numbers of an action.

    Raises:
      ValueError: for a name that there is not.
    """
    tested = AGENTS.get(name, FURTHER.get(name))
    if tested is None:
        return models.make(name, **sizes)
    features, actions = sizes.pop("features", 4), sizes.pop("actions", 4)
    builder_class = find_builder(name)
    builder = builder_class(builder_class.config_class(**{**tested, **sizes}))
    number = specs.Array((), np.float32)
    action: specs.Array = specs.DiscreteArray(actions)
    if name in BOXED:
        action = specs.BoundedArray((actions,), np.float32, -1.0, 1.0)
    observation: Any = specs.Array((features,), np.float32)
    if name in ANSWERING:
        action = AnswerArray((actions, features), _TOKENS, pad=0, end=1)
        tokens = specs.BoundedArray((features,), np.int32, 0, _TOKENS - 1)
        scores = specs.Array((actions,), np.float32)
        observation = {"prompt": tokens, "solution": tokens, "scores": scores}
    spec = EnvironmentSpec(observation, action, number, number)
    networks = builder.make_networks(spec)
    update = builder.make_update(networks, spec)
    policy = builder.make_policy(networks, spec)
    replay = builder.make_replay_tables(spec, policy, num_envs=builder.num_envs)
    shapes = replay.sample_shapes()

    def make_batch(key: jax.Array) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, shape: _leaf(path, shape, key, actions), shapes
        )

    def init(key: jax.Array) -> Any:
        return update.init(jax.random.wrap_key_data(key))

    return Example(name, update.step, init, make_batch, DATA_AND_MODEL, builder.config)


def _leaf(path: Any, shape: jax.ShapeDtypeStruct, key: jax.Array, actions: int) -> jax.Array:
    """An array of a batch, by the name of its field."""
    name = str(getattr(path[-1], "name", getattr(path[-1], "key", "")))
    key = jax.random.fold_in(key, sum(map(ord, jax.tree_util.keystr(path))))
    if name == "action" and jnp.issubdtype(shape.dtype, jnp.floating):
        return jax.random.uniform(key, shape.shape, shape.dtype, -1.0, 1.0)
    if name == "action":
        return jax.random.randint(key, shape.shape, 0, actions, shape.dtype)
    if jnp.issubdtype(shape.dtype, jnp.integer) or name == "mask":  # No padding, no boundaries.
        return jnp.ones(shape.shape, jax.dtypes.canonicalize_dtype(shape.dtype))
    if name in ("discount", "probabilities", "size"):
        return jax.random.uniform(key, shape.shape, shape.dtype, 0.5, 1.0)
    values = jax.random.normal(key, shape.shape, shape.dtype)
    return -jnp.abs(values) if name == "log_prob" else values
