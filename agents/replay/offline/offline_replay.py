"""The replay over a dataset: the items of any replay, drawn from rows that nobody adds to."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from dm_env import StepType

from ...interfaces import Adder
from ..embedded.embedded_replay import make_windows, row_fields
from ..embedded.entries import Entries
from ..embedded.rows import Rows
from ..items import ReplaySpec, Rollouts, Sample, SampleInfo
from ..nests import Nest
from ..shapes import sample_shapes
from .dataset import Dataset

_FIRST = int(StepType.FIRST)
_BLOCK = 4
"""Numbers that the generator makes at a time."""


class OfflineReplay:
    """Draws batches of a dataset uniformly, with replacement.

    Batch k, of the whole learner, follows from the seed and k alone: a run that goes on says with
    `seek` how many it had drawn, and the processes of a gang draw the rows that one process would,
    each its share of every batch.
    """

    def __init__(
        self,
        dataset: Dataset,
        spec: ReplaySpec,
        environment_spec: Any,
        extras_spec: Nest = (),
        *,
        seed: int = 0,
        share: tuple[int, int] = (0, 1),
        num_batches: int | None = None,
    ) -> None:
        """Finds the items; rows stay where they are.

        Args:
          dataset: of the environment's kind.
          spec: what an item is, and the batch of the whole learner; its sizes and its pace are of
            no meaning.
          environment_spec: its `observations` and `actions` say what batches hold.
          extras_spec: of what the policy stores beside an action; data has none.
          seed: of the draws.
          share: rank of this process and number of processes that share every batch.
          num_batches: how many there are to be drawn; None: any number.

        Raises:
          ValueError: if the data does not fit the environment, the agent or the share.
        """
        dataset.require(environment_spec)
        if isinstance(spec.item, Rollouts):
            raise ValueError(
                "the agent learns from rollouts of its own policy, which data does not have; take "
                "an off-policy agent, or bc."
            )
        if spec.priority_exponent is not None:
            raise ValueError(
                "data is drawn uniformly; set priority_exponent to None to learn from it."
            )
        if jax.tree.leaves(extras_spec):
            raise ValueError(
                "the agent learns from what its policy stores beside its actions, which data does "
                "not have."
            )
        rank, size = share
        if spec.batch_size % size:
            raise ValueError(
                f"a batch of {spec.batch_size} cannot be shared equally by {size} processes."
            )
        self._windows = make_windows(spec.item, None)
        found = _Found()
        self._windows.insert_into(found)
        _walk(dataset, self._windows)
        if not found.items:
            raise ValueError(f"no episode in the data of {dataset.source} holds a {spec.item}.")
        count = len(found.items)
        entries = Entries(count, self._windows.columns, priority_exponent=None, seed=0)
        entries.insert(tuple(map(np.asarray, zip(*found.items, strict=True))), count)
        # The dataset's own specs: it says which of its leaves are stacks of frames.
        specs = _Specs(dataset.observations, dataset.actions)
        rows = Rows(
            row_fields(self._windows.stored, specs, extras_spec), len(dataset.step_type), None
        )
        rows.lay(_arrays(dataset), np.asarray(dataset.step_type) == _FIRST)
        self._windows.attach(rows, entries)
        batch = spec.batch_size // size
        self.spec = dataclasses.replace(
            spec,
            batch_size=batch,
            max_size=max(count, batch),
            min_size=1,
            samples_per_insert=None,
            tolerance=None,
        )
        self._specs = environment_spec, extras_spec
        self._seed, self._size, self._limit = seed, count, num_batches
        self._batch_size = spec.batch_size
        self._columns = slice(rank * batch, (rank + 1) * batch)
        self._blocks = -(-spec.batch_size // _BLOCK)
        self._drawn = 0
        self.fingerprint = dataset.fingerprint

    def seek(self, num_batches: int) -> None:
        """Goes on as if so many batches had been drawn."""
        self._drawn = num_batches

    def sample(self, num_batches: int | None = None) -> Sample:
        """Draws a batch, [B, ...]; with `num_batches` K, as many at once, [K, B, ...].

        Raises:
          ValueError: if there are not so many left to be drawn.
        """
        count = num_batches or 1
        if not self.can_sample(count):
            raise ValueError(
                f"{self._drawn} of {self._limit} batches are drawn and {count} were asked for: ask "
                "can_sample first."
            )
        generator = np.random.Generator(
            np.random.Philox(key=self._seed, counter=self._drawn * self._blocks)
        )
        self._drawn += count
        numbers = generator.random((count, self._blocks * _BLOCK))[:, self._columns]
        slots = np.minimum((numbers * self._size).astype(np.int64), self._size - 1)
        if num_batches is None:
            slots = slots[0]
        info = SampleInfo(
            slots,
            np.full(slots.shape, 1.0 / self._size, np.float32),
            np.full(slots.shape, self._size, np.float32),
        )
        return Sample(info, self._windows.gather(slots))

    def sample_shapes(self, num_batches: int | None = None) -> Sample:
        """Returns the shapes and dtypes of `sample`, as `jax.ShapeDtypeStruct`."""
        return sample_shapes(self.spec, *self._specs, num_batches)

    def dataset(self, num_batches: int | None = None) -> Iterator[Sample]:
        """Batches without end, as `sample` gives them."""
        while True:
            yield self.sample(num_batches)

    def can_insert(self) -> bool:
        """False: nobody writes here."""
        return False

    def can_sample(self, num_batches: int = 1) -> bool:
        """True if so many batches are left to be drawn."""
        return self._limit is None or self._drawn + num_batches <= self._limit

    def wait(self, seconds: float) -> bool:
        """True if a batch is left to be drawn. Sleeps where none is: none will come."""
        if not self.can_sample():
            time.sleep(seconds)
        return self.can_sample()

    def adder(self) -> Adder:
        """Raises ValueError: nobody writes here."""
        raise ValueError("nothing is added to data; an agent that learns from it does not act.")

    def place_batches(self, place: Callable[[Sample], Sample]) -> None:
        """Nothing is read ahead here."""

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Raises ValueError: data is drawn uniformly."""
        raise ValueError("data is drawn uniformly: it has no priorities to update.")

    def save(self) -> Nest:
        """Returns the number of batches drawn, the only state that changes."""
        return {"batches": np.int64(self._drawn)}

    def restore(self, state: Nest) -> None:
        """Takes back what `save` gave."""
        self.seek(int(state["batches"]))

    def close(self) -> None:
        """Nothing is to be closed here."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the state that changes: the data itself stays where it came from."""
        return 8

    def __len__(self) -> int:
        return self._size

    @property
    def inserted(self) -> int:
        """Items that there are."""
        return self._size

    @property
    def sampled(self) -> int:
        """Items ever drawn, by all processes of the learner."""
        return self._drawn * self._batch_size

    @property
    def observed_samples_per_insert(self) -> float:
        """Items drawn per item that there is."""
        return self.sampled / self._size


class _Found:
    """Collects items."""

    def __init__(self) -> None:
        self.items: list[tuple[Any, ...]] = []

    def insert_one(self, values: tuple[Any, ...]) -> None:
        self.items.append(values)

    def insert(self, values: tuple[Any, ...], count: int) -> None:
        raise AssertionError("one stream has one item at a time.")


@dataclasses.dataclass(frozen=True)
class _Specs:
    observations: Nest
    actions: Nest


def _walk(dataset: Dataset, windows: Any) -> None:
    """Goes through the rows as if they were being written."""
    kinds, rewards, discounts = (
        array.tolist() for array in (dataset.step_type, dataset.reward, dataset.discount)
    )
    windows.restart(0)
    for row in range(1, len(kinds)):
        windows.advance(row, rewards[row - 1], discounts[row - 1], [kinds[row]], False)


def _arrays(dataset: Dataset) -> dict[str, Any]:
    return {
        "observation": dataset.observation,
        "action": dataset.action,
        "extras": (),
        "reward": (dataset.reward,),
        "discount": (dataset.discount,),
        "step_type": (dataset.step_type,),
    }
