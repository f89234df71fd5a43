"""RND: exploration by random network distillation (Burda et al., 2018)."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from ...environments import action_masks
from ...environments.specs import EnvironmentSpec
from .. import leading_axes
from ..bounds import Above, AllBounds
from ..configs import Config
from ..interfaces import Update
from ..learning import normalization, optimizers
from ..learning.descent import descend
from ..learning.normalization import Statistics
from ..losses import masks
from ..networks.core import dummy, from_haiku
from ..networks.torsos import make_torso
from ..replay.items import Sample, Sequence
from .wrapper import Wrapper, followed, learn_before, with_reward

Nest = Any


@dataclasses.dataclass(frozen=True)
class RNDConfig(Config):
    """Of rewards for what is new."""

    novelty_scale: float = 0.1
    """Reward of an observation that is one deviation of the predictor's errors away from known."""
    novelty_sizes: tuple[int, ...] = (64, 64)
    """Units of the hidden layers of the predictor, and of the random network that it predicts."""
    novelty_outputs: int = 32
    """Numbers that it predicts of an observation."""
    novelty_learning_rate: float = 1e-4
    """Step size of Adam for the predictor."""

    bounds: ClassVar[AllBounds] = {
        "novelty_scale": (0.0, 1e6),
        "novelty_sizes": (1, 65_536),
        "novelty_outputs": (1, 65_536),
        "novelty_learning_rate": Above(0.0, 100.0),
    }


class RNDState(NamedTuple):
    """State of the novelty's networks and statistics."""

    target: Nest
    """Parameters of the random network. Never change."""
    predictor: Nest
    optimizer: Nest
    observations: Statistics | None
    """Statistics that whiten both networks' inputs; None if observations are not all real."""
    errors: Statistics
    """Of the predictor's errors, whose deviation is the unit of what is added to rewards."""


class RND(Wrapper):
    """Adds to every reward how new what followed is: the error in predicting a random function.

    Of n-step transitions, what they end with. Errors are measured in their own deviation, as what
    is replayed has no order in which intrinsic returns could be summed.
    """

    config_class = RNDConfig

    def make_update(self, networks: Any, spec: EnvironmentSpec) -> Update:
        """Burda et al. (2018), https://arxiv.org/abs/1810.12894, sections 2.2 and 2.4."""
        agent = super().make_update(networks, spec)  # type: ignore[safe-super]
        config: RNDConfig = self.config
        parts = jax.tree.leaves(action_masks.visible(spec.observations))
        is_real = all(
            part.dtype.kind == "f" and not isinstance(part, specs.DiscreteArray) for part in parts
        )

        def features(observation: Nest) -> jax.Array:
            torso = make_torso(spec.observations, config.novelty_sizes)
            return hk.Linear(config.novelty_outputs)(torso(observation))

        network = from_haiku(features, dummy(spec.observations, 1))
        optimizer = optimizers.adam(config.novelty_learning_rate)

        def init(key: jax.Array) -> RNDState:
            target, predictor = map(network.init, jax.random.split(key))
            observations = normalization.init(spec.observations) if is_real else None
            errors = normalization.init(specs.Array((), np.float32))
            return RNDState(target, predictor, optimizer.init(predictor), observations, errors)

        def loss(predictor, target, observation, mask):
            predicted, expected = (
                network.apply(params, observation) for params in (predictor, target)
            )
            errors = jnp.mean((predicted - expected) ** 2, axis=-1)
            return masks.mean(errors, mask), errors

        def before(state: RNDState, sample: Sample):
            data = sample.data
            observation, mask = followed(data)
            rows, counts = observation, mask
            if isinstance(data, Sequence):
                rows, counts = leading_axes.merge((observation, mask))
            white = rows
            if state.observations is not None:
                white = normalization.apply(state.observations, rows, clip=5.0)
            descent = descend(
                loss, optimizer, state.predictor, state.optimizer, state.target, white, counts
            )
            errors = descent.aux.reshape(mask.shape)
            novelty = mask * errors * jax.lax.rsqrt(state.errors.variance + 1e-8)
            reward = data.reward if data.reward.ndim == 1 else data.reward[:, :-1]
            new_data = with_reward(data, reward + config.novelty_scale * novelty)
            observations = state.observations
            if observations is not None:
                observations = normalization.update(observations, rows, counts)
            state = RNDState(
                state.target,
                descent.params,
                descent.optimizer,
                observations,
                normalization.update(state.errors, errors, mask),
            )
            metrics = {"novelty": masks.mean(novelty, mask), "novelty_loss": descent.loss}
            return state, sample._replace(data=new_data), metrics

        return learn_before(agent, init, before)
