"""Rewards of mean square 1, by running statistics of what is learned from."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from ...environments.specs import EnvironmentSpec
from ..bounds import Above, AllBounds
from ..configs import Config
from ..interfaces import Update
from ..replay.items import Sample, Sequence, Transition
from .wrapper import Wrapper, followed, learn_before, with_reward

_LEAST = 1e-8
"""Added to the mean square: rewards that are all 0 stay so."""


class RewardStatistics(NamedTuple):
    """Of all rewards that were learned from."""

    num_rows: jax.Array
    """float32 []"""
    mean_square: jax.Array
    """float32 []"""


@dataclasses.dataclass(frozen=True)
class NormalizedRewardsConfig(Config):
    """Of rewards over the root of their mean square."""

    reward_limit: float = 10.0
    """Normalised rewards lie between +- this."""

    bounds: ClassVar[AllBounds] = {"reward_limit": Above(0.0, 1e6)}


class NormalizedRewards(Wrapper):
    """Has any agent learn from rewards that are scaled, and nothing but scaled: none changes sign.

    What is logged and judged are the environment's own.
    """

    config_class = NormalizedRewardsConfig

    def make_update(self, networks: Any, spec: EnvironmentSpec) -> Update:
        agent = super().make_update(networks, spec)  # type: ignore[safe-super]
        limit = self.config.reward_limit

        def before(
            statistics: RewardStatistics, sample: Sample
        ) -> tuple[RewardStatistics, Sample, dict[str, jax.Array]]:
            data: Transition | Sequence = sample.data
            _, mask = followed(data)
            rewards = data.reward[:, :-1] if isinstance(data, Sequence) else data.reward
            statistics = updated(statistics, rewards, mask)
            scale = jax.lax.rsqrt(statistics.mean_square + _LEAST)
            normal = with_reward(data, jnp.clip(rewards * scale, -limit, limit))
            return statistics, sample._replace(data=normal), {"reward_scale": scale}

        return learn_before(
            agent, lambda key: RewardStatistics(jnp.zeros(()), jnp.ones(())), before
        )


def updated(statistics: RewardStatistics, rewards: jax.Array, mask: jax.Array) -> RewardStatistics:
    """Returns the statistics with rewards [...] added where the mask [...] is 1."""
    count = jnp.sum(mask)
    total = statistics.num_rows + count
    share = count / jnp.maximum(total, 1.0)
    mean = jnp.sum(mask * rewards**2) / jnp.maximum(count, 1.0)
    moved = statistics.mean_square + share * (mean - statistics.mean_square)
    return RewardStatistics(total, jnp.where(count > 0, moved, statistics.mean_square))
