"""SQIL: imitation by an agent of a replay, whose rewards say what is data (Reddy et al., 2019)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from dm_env import StepType

from ..replay.offline.dataset import Dataset
from .demonstrations import Demonstrations, DemonstrationsConfig


@dataclasses.dataclass(frozen=True)
class SQILConfig(DemonstrationsConfig):
    """Of imitation by rewards of 1 and 0."""

    data_fraction: float = 0.5
    """Part of every batch that is drawn of the data; at least one item, and not all."""


class SQIL(Demonstrations):
    """Imitates data: each of its steps is rewarded with 1, and each of the agent's with 0.

    Reddy et al. (2019), https://arxiv.org/abs/1905.11108, algorithm 1.
    """

    config_class = SQILConfig

    def of_data(self, dataset: Dataset) -> Dataset:
        acted = np.asarray(dataset.step_type) != int(StepType.LAST)
        return dataclasses.replace(dataset, reward=acted.astype(np.float32))

    def of_own(self, data: Any) -> Any:
        return data._replace(reward=np.zeros_like(data.reward))
