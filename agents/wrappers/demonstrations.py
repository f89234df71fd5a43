"""Data in every batch: of those who show how it is done, beside what the agent itself did."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from ...environments.specs import EnvironmentSpec
from ..bounds import Above, AllBounds
from ..configs import Config
from ..interfaces import ActorCore
from ..replay.interface import Replay
from ..replay.items import ReplaySpec, Rollouts
from ..replay.offline.dataset import Dataset
from ..replay.offline.mixed import MixedReplay
from ..replay.offline.offline_replay import OfflineReplay
from .wrapper import Wrapper


@dataclasses.dataclass(frozen=True)
class DemonstrationsConfig(Config):
    """Of learning from data besides."""

    data_fraction: float = 0.25
    """Part of every batch that is drawn of the data; at least one item, and not all."""

    bounds: ClassVar[AllBounds] = {"data_fraction": Above(0.0, 1.0)}


class Demonstrations(Wrapper):
    """Has an agent of a replay learn from data besides.

    As Vecerik et al. (2017), https://arxiv.org/abs/1707.08817, and Paine et al. (2019),
    https://arxiv.org/abs/1909.01387. The data is the experiment's. There are as many gradient steps
    as without it.
    """

    config_class: ClassVar[type] = DemonstrationsConfig
    mixes_data = True

    def make_replay_spec(self, spec: EnvironmentSpec) -> ReplaySpec:
        """Of what the agent itself did: its part of every batch."""
        whole = super().make_replay_spec(spec)  # type: ignore[safe-super]
        if isinstance(whole.item, Rollouts):
            raise ValueError(
                f"{self.name} cannot learn from data: its agent learns from rollouts of its own "
                "policy; take one that has a replay."
            )
        own, pace = whole.batch_size - self._num_items(whole), whole.samples_per_insert
        if pace is not None:
            pace *= own / whole.batch_size
        return dataclasses.replace(whole, batch_size=own, samples_per_insert=pace)

    def make_replay_tables(
        self, spec: EnvironmentSpec, policy: ActorCore, **options: Any
    ) -> Replay:
        replay = super().make_replay_tables(spec, policy, **options)
        whole = super().make_replay_spec(spec)  # type: ignore[safe-super]
        num_items, extras = self._num_items(whole), self.make_extras_spec(policy)
        # Of a batch that processes share, this one's part.
        share = num_items * replay.spec.batch_size // (whole.batch_size - num_items)

        def make_data(batch_size: int) -> OfflineReplay:
            if self.load_data is None:
                raise ValueError(f"{self.name} learns from data besides, and was given none.")
            uniform = dataclasses.replace(whole, batch_size=batch_size, priority_exponent=None)
            dataset = self.of_data(self.load_data(spec))
            return OfflineReplay(dataset, uniform, spec, extras, seed=options.get("seed", 0))

        return MixedReplay(replay, make_data, share, self.of_own)

    def of_data(self, dataset: Dataset) -> Dataset:
        """The data as it is learned from; as it is, unless overridden."""
        return dataset

    def of_own(self, data: Any) -> Any:
        """Items of what the agent itself did, likewise."""
        return data

    def _num_items(self, whole: ReplaySpec) -> int:
        size: int = whole.batch_size
        if size < 2:
            raise ValueError(f"batch_size is {size}; with data in every batch it is at least 2.")
        return min(max(round(self.config.data_fraction * size), 1), size - 1)
