"""A replay that appends items of data to its batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ..interface import Replay
from ..items import Sample
from ..nests import Nest
from .offline_replay import OfflineReplay


class MixedReplay:
    """Any replay, in this process or elsewhere, with items of data behind those drawn from it.

    Writes, sizes and the pace are the replay's. An item's `extras` tell data from the replay's own:
    {"is_data": 1} or 0, float32. Items of data weigh 1 beside priorities, and are given none.
    """

    def __init__(
        self,
        replay: Replay,
        make_data: Callable[[int], OfflineReplay],
        num_items: int,
        of_own: Callable[[Any], Any] = lambda data: data,
    ) -> None:
        """Reads no data before a batch is drawn: of several processes only the learner's does.

        Args:
          replay: what actors write to; its items have no extras.
          make_data: `batch size -> data`.
          num_items: of data in a batch, beside the replay's own.
          of_own: `data -> data`, applied to the items drawn from the replay.
        """
        self._replay, self._make, self._of_own = replay, make_data, of_own
        self._data: OfflineReplay | None = None
        self._seek = 0
        self._num_own, self._num_items = replay.spec.batch_size, num_items
        self.spec = dataclasses.replace(
            replay.spec,
            batch_size=self._num_own + num_items,
            max_size=max(replay.spec.max_size, self._num_own + num_items),
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_replay":  # While it is copied it has none.
            raise AttributeError(name)
        return getattr(self._replay, name)

    def __len__(self) -> int:
        return len(self._replay)

    def sample(self, num_batches: int | None = None) -> Sample:
        """A batch, [B, ...], the data's items last; with `num_batches` K, [K, B, ...]."""
        return self._mix(self._replay.sample(num_batches), num_batches)

    def dataset(self, num_batches: int | None = None) -> Iterator[Sample]:
        """Batches without end, as `sample` gives them."""
        for own in self._replay.dataset(num_batches):
            yield self._mix(own, num_batches)

    def sample_shapes(self, num_batches: int | None = None) -> Sample:
        """Returns the shapes and dtypes of `sample`, as `jax.ShapeDtypeStruct`."""
        axis = 0 if num_batches is None else 1

        def grown(x: Any) -> jax.ShapeDtypeStruct:
            shape = list(x.shape)
            shape[axis] += self._num_items
            return jax.ShapeDtypeStruct(tuple(shape), x.dtype)

        shapes: Sample = jax.tree.map(grown, self._replay.sample_shapes(num_batches))
        is_data = jax.ShapeDtypeStruct(shapes.info.size.shape, np.float32)
        return shapes._replace(data=shapes.data._replace(extras={"is_data": is_data}))

    def place_batches(self, place: Callable[[Sample], Sample]) -> None:
        """Batches are put together on the host; the learner puts them on its devices."""

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Gives the replay's own items new priorities."""
        own = np.s_[..., : self._num_own]
        self._replay.update_priorities(keys[own], priorities[own])

    def save(self) -> Nest:
        """Returns the state of the replay, and the number of batches of data that were drawn."""
        drawn = self._seek if self._data is None else self._data.save()["batches"]
        return {**self._replay.save(), "data": np.int64(drawn)}

    def restore(self, state: Nest) -> None:
        """Takes back what `save` gave."""
        self._seek, self._data = int(state["data"]), None
        self._replay.restore({name: part for name, part in state.items() if name != "data"})

    def _mix(self, own: Sample, num_batches: int | None) -> Sample:
        if self._data is None:
            self._data = self._make(self._num_items)
            self._data.seek(self._seek)
        data = self._data.sample(num_batches)
        axis = own.info.size.ndim - 1
        marked = [
            part._replace(
                data=part.data._replace(
                    extras={"is_data": np.full(part.info.size.shape, flag, np.float32)}
                )
            )
            for part, flag in ((own._replace(data=self._of_own(own.data)), 0.0), (data, 1.0))
        ]

        def join(a: Any, b: Any) -> np.ndarray:
            a = np.asarray(a)
            return np.concatenate([a, np.asarray(b).astype(a.dtype)], axis=axis)

        return jax.tree.map(join, *marked)
