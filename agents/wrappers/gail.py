"""GAIL: imitation by a reward for what cannot be told from data (Ho and Ermon, 2016)."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ...environments.specs import EnvironmentSpec
from ..bounds import Above, AllBounds
from ..interfaces import Update
from ..learning import optimizers
from ..learning.descent import descend
from ..networks.critics import make_critic
from ..replay.items import ReplaySpec, Sample, Transitions
from .demonstrations import Demonstrations, DemonstrationsConfig
from .wrapper import learn_before

Nest = Any


@dataclasses.dataclass(frozen=True)
class GAILConfig(DemonstrationsConfig):
    """Of imitation by a discriminator."""

    data_fraction: float = 0.5
    """Part of every batch that is drawn of the data; at least one item, and not all."""
    discriminator_sizes: tuple[int, ...] = (64, 64)
    """Units of the hidden layers of the discriminator."""
    discriminator_learning_rate: float = 1e-4
    """Step size of Adam for the discriminator."""
    discriminator_penalty: float = 0.1
    """Weight of the discriminator's mean squared logit, which keeps it from being sure."""

    bounds: ClassVar[AllBounds] = {
        "discriminator_sizes": (1, 65_536),
        "discriminator_learning_rate": Above(0.0, 100.0),
        "discriminator_penalty": (0.0, 1e6),
    }


class Discriminator(NamedTuple):
    """State of the discriminator."""

    params: Nest
    optimizer: Nest


class GAIL(Demonstrations):
    """Imitates data: rewards are for what a discriminator takes for it.

    As an agent of a replay learns it (Kostrikov et al., 2018, https://arxiv.org/abs/1809.02925),
    with the reward -log(1 - D) of Ho and Ermon (2016), https://arxiv.org/abs/1606.03476, which is
    never below 0: for tasks in which episodes that go on are good ones.
    """

    config_class = GAILConfig

    def make_replay_spec(self, spec: EnvironmentSpec) -> ReplaySpec:
        found = super().make_replay_spec(spec)
        if found.item != Transitions(1, getattr(found.item, "discount", 1.0)):
            raise ValueError(
                f"{self.name} rewards single steps, and its agent learns from {found.item}; take "
                "one of transitions, with n_step 1."
            )
        return found

    def make_update(self, networks: Any, spec: EnvironmentSpec) -> Update:
        agent = super().make_update(networks, spec)  # type: ignore[safe-super]
        config: GAILConfig = self.config
        network = make_critic(spec, config.discriminator_sizes, size=1)
        optimizer = optimizers.adam(config.discriminator_learning_rate)

        def init(key: jax.Array) -> Discriminator:
            params = network.init(key)
            return Discriminator(params, optimizer.init(params))

        def loss(params, data):
            logits = network.apply(params, data.observation, data.action)[0]
            losses = optax.sigmoid_binary_cross_entropy(logits, data.extras["is_data"])
            return jnp.mean(losses + config.discriminator_penalty * logits**2), logits

        def before(state: Discriminator, sample: Sample):
            data = sample.data
            descent = descend(loss, optimizer, state.params, state.optimizer, data)
            is_right = (descent.aux > 0) == (data.extras["is_data"] > 0)
            metrics = {
                "discriminator_loss": descent.loss,
                "discriminator_accuracy": jnp.mean(is_right.astype(jnp.float32)),
            }
            rewarded = data._replace(reward=jax.nn.softplus(descent.aux))
            state = Discriminator(descent.params, descent.optimizer)
            return state, sample._replace(data=rewarded), metrics

        return learn_before(agent, init, before)
