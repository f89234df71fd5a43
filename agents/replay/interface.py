"""The interface of a replay to a learner and the loop around it, wherever the replay lives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..interfaces import Adder, Nest
from .items import ReplaySpec, Sample


@runtime_checkable
class Replay(Protocol):
    """Items in, batches out. K: batches drawn together, B: batch."""

    spec: ReplaySpec
    """Its specification; of a replay that processes share, with this one's part of the batch."""

    def adder(self) -> Adder:
        """Returns an adder that writes into this replay."""

    def can_insert(self) -> bool:
        """True if the pace lets actors go on."""

    def can_sample(self, num_batches: int = 1) -> bool:
        """True if the pace lets the learner draw `num_batches` batches."""

    def wait(self, seconds: float) -> bool:
        """Waits for a dispatch's batches, at most so long. Returns whether they are ready."""

    def sample(self, num_batches: int | None = None) -> Sample:
        """A batch, [B, ...]; with `num_batches` K, as many at once, [K, B, ...]."""

    def sample_shapes(self, num_batches: int | None = None) -> Sample:
        """Returns the shapes of `sample`, as `jax.ShapeDtypeStruct`, known before any write."""

    def place_batches(self, place: Callable[[Sample], Sample]) -> None:
        """Has batches that a thread reads ahead made ready by `place` there: put on the devices
        that learn from them. Where none are read ahead there is nothing to do."""

    @property
    def num_bytes(self) -> int:
        """Approximate bytes of the items held; the same for equal items, wherever they lie."""

    def dataset(self, num_batches: int | None = None) -> Iterator[Sample]:
        """Batches without end, as `sample` gives them."""

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Gives items new priorities; keys of items that are gone are ignored."""

    def save(self) -> Nest:
        """All that the replay holds, as a nest of numpy arrays."""

    def restore(self, state: Nest) -> None:
        """Takes back what `save` gave."""

    def close(self) -> None: ...

    def __len__(self) -> int:
        """Items held."""

    @property
    def inserted(self) -> int:
        """Items ever inserted."""

    @property
    def sampled(self) -> int:
        """Items ever drawn."""

    @property
    def observed_samples_per_insert(self) -> float:
        """Items drawn per item inserted since the replay held its `min_size`; 0 before."""


class ReplayFactory(Protocol):
    """Makes a replay, or the proxy that a role has of one that lives elsewhere."""

    def __call__(
        self,
        replay_spec: ReplaySpec,
        environment_spec: Any,
        extras_spec: Nest,
        /,
        *,
        num_envs: int | None,
        seed: int,
        steps_per_sample: int,
    ) -> Replay:
        """Makes the replay.

        Args:
          replay_spec: what an item is, how many are held, and the pace.
          environment_spec: its `observations` and `actions` say what rows hold.
          extras_spec: of what the policy stores beside an action.
          num_envs: N, environments stepped together; None: one, without a dimension for it.
          seed: of the draws.
          steps_per_sample: K, batches that the learner draws at once.
        """
