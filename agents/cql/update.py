"""CQL's update: as SAC's, with critics that promise little of what the data does not hold."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ...environments.specs import EnvironmentSpec
from .. import leading_axes
from ..interfaces import Update
from ..losses import actor_critic, estimates
from ..networks.core import require_box
from ..replay.items import Transition
from ..sac import update as sac
from ..sac.networks import SACNetworks
from .config import CQLConfig


def make_update(networks: SACNetworks, spec: EnvironmentSpec, config: CQLConfig) -> Update:
    """Conservative Q-learning: Kumar et al. (2020), https://arxiv.org/abs/2006.04779.

    CQL(H), equation 4: the soft maximum over actions of the critics' values is held down, the
    values of the data's actions up. The maximum is estimated as in its appendix F, by actions drawn
    uniformly, of the policy, and of the policy a step later, each over its density.
    """
    box, estimate = require_box("cql", spec), estimates.regression(*config.critic_support)
    log_uniform = -float(np.sum(np.log(box.maximum - box.minimum)))

    def uniform(observation, key):
        """Actions [B, ...] of the box and the logarithms of their densities, [B]."""
        batch_size = len(jax.tree.leaves(observation)[0])
        shape = (batch_size, *box.shape)
        action = jax.random.uniform(key, shape, box.dtype, box.minimum, box.maximum)
        return action, jnp.full(batch_size, log_uniform)

    def penalty(critic_params, policy_params, data: Transition, key):
        def policy(observation, key):
            return networks.draw(policy_params, observation, key)

        def drawn(key):
            """Three actions for each state: their values [3, E, B] and densities [3, B]."""
            found = [
                draw(observation, each)
                for draw, observation, each in zip(
                    (uniform, policy, policy),
                    (data.observation, data.observation, data.next_observation),
                    jax.random.split(key, 3),
                    strict=True,
                )
            ]
            actions, log_densities = map(jnp.stack, zip(*found, strict=True))
            return jax.vmap(judge)(actions), log_densities

        dropped = {"key": jax.random.fold_in(key, sac.DROPOUT)} if config.critic_dropout else {}

        def judge(action):
            # The same units are left out for all actions that are compared.
            outputs = networks.critic.apply(critic_params, data.observation, action, **dropped)
            return estimate.mean(outputs)

        keys = jax.random.split(key, config.num_action_samples)
        q_drawn, log_densities = leading_axes.merge(jax.vmap(drawn)(keys))
        q = judge(data.action)
        gap = jnp.mean(actor_critic.conservative_gap(q, q_drawn, log_densities))
        return config.conservative_weight * gap, {"conservative_gap": gap}

    return sac.make_update(networks, spec, config, penalty)
