"""The format of items between processes: flat columns of arrays, frames once.

An item is a dict of columns. Each leaf of a row is one column, named after its field. Of a stack
only single frames travel, as they were written: `stack` of them for a transition, and for a window
of T rows the T newest with the `stack - 1` before them. Some may be of an earlier episode. A
transition tells them by its ages, the rows since the first of its episode; a window tells them by
its step types, which go back as far as the frames.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from dm_env import StepType

from ..items import Episodes, ReplaySpec, Rollouts, Sequence, Sequences, Transition, Transitions
from ..nests import Nest, Structure

_FIRST, _LAST = int(StepType.FIRST), int(StepType.LAST)
Columns = dict[str, tuple[tuple[int, ...], np.dtype]]


class Leaf:
    """One leaf of an observation, an action or the extras."""

    def __init__(self, name: str, spec: Any) -> None:
        self.name = name
        self.shape, self.dtype = tuple(spec.shape), np.dtype(spec.dtype)
        self.stack: int = getattr(spec, "stack", 1)
        self._axis: int = getattr(spec, "axis", -1)
        kept = list(self.shape)
        if self.stack > 1:
            if self._axis >= 0:
                self._axis -= len(kept)
            del kept[self._axis]
        self.kept = tuple(kept)

    def newest(self, value: Any) -> np.ndarray:
        """Returns the part of a value that a row keeps: of a stack, the newest frame."""
        value = np.asarray(value, self.dtype)
        return value if self.stack == 1 else np.take(value, -1, self._axis)

    def restack(self, frames: np.ndarray, behind: int) -> np.ndarray:
        """[..., stack, *frame], the stack behind `behind` dimensions, as the spec has it."""
        stacked = np.empty((*frames.shape[:behind], *self.shape), self.dtype)
        to, of = np.moveaxis(stacked, self._axis, 0), np.moveaxis(frames, behind, 0)
        for k in range(self.stack):  # A quarter of the time of copying all at once.
            to[k] = of[k]
        return stacked


class Wire:
    """The columns of a spec's items, written by actors and read by the learner."""

    def __init__(self, spec: ReplaySpec, environment_spec: Any, extras_spec: Nest = ()) -> None:
        item = spec.item
        self.is_transition = isinstance(item, Transitions)
        self.is_rollout = isinstance(item, Rollouts)
        if isinstance(item, Sequences):
            self.length = item.length
        elif isinstance(item, Episodes):
            self.length = item.max_length
        else:
            self.length = item.length + 1 if isinstance(item, Rollouts) else 1
        self.structures = {
            "observation": Structure(environment_spec.observations, "observation"),
            "action": Structure(environment_spec.actions, "action"),
            "extras": Structure(extras_spec, "extras"),
        }
        self.leaves = {
            name: [Leaf(f"{name}_{i:03}", leaf) for i, leaf in enumerate(structure.specs)]
            for name, structure in self.structures.items()
        }
        self.depth = max((leaf.stack for leaf in self.leaves["observation"]), default=1)
        # Steps of a writer that an item may reach back over: its rows, the frames before them, and
        # what is written behind the end of an episode.
        n_step = item.n_step if isinstance(item, Transitions) else 0
        self.reach = 2 * (self.length + n_step) + self.depth + 2
        self.columns = self._columns()

    def _columns(self) -> Columns:
        columns: Columns = {}
        number = np.dtype(np.float32)
        if self.is_transition:
            for leaf in self.leaves["observation"]:
                stack = (leaf.stack,) if leaf.stack > 1 else ()
                for name in (leaf.name, f"next_{leaf.name}"):
                    columns[name] = (*stack, *leaf.kept), leaf.dtype
            for leaf in self.leaves["action"] + self.leaves["extras"]:
                columns[leaf.name] = leaf.shape, leaf.dtype
            if self.depth > 1:
                columns |= {name: ((), np.dtype(np.int32)) for name in ("age", "next_age")}
            return {**columns, "reward": ((), number), "discount": ((), number)}
        for leaf in self.leaves["observation"]:
            columns[leaf.name] = (self.length + leaf.stack - 1, *leaf.kept), leaf.dtype
        outcomes = self.length - 1 if self.is_rollout else self.length
        for leaf in self.leaves["action"] + self.leaves["extras"]:
            columns[leaf.name] = (outcomes, *leaf.shape), leaf.dtype
        for name in ("reward", "discount"):
            columns[name] = (outcomes,), number
        columns["step_type"] = (self.length + self.depth - 1,), np.dtype(np.int32)
        columns["mask"] = (self.length,), number
        return columns

    def unpack(self, columns: dict[str, np.ndarray], leading: tuple[int, ...]) -> Any:
        """A batch of items, every column [M, ...], as the learner gets it, [*leading, ...]."""
        read = self._transition if self.is_transition else self._sequence
        fields = read(columns)
        nests = {}
        for name, value in fields.items():
            if isinstance(value, list):
                value = [leaf.reshape(*leading, *leaf.shape[1:]) for leaf in value]
                structure = self.structures[name.removeprefix("next_")]
                nests[name] = structure.unflatten(value)
            else:
                nests[name] = value.reshape(*leading, *value.shape[1:])
        return Transition(**nests) if self.is_transition else Sequence(**nests)

    def _transition(self, columns: dict[str, np.ndarray]) -> dict[str, Any]:
        fields: dict[str, Any] = {name: columns[name] for name in ("reward", "discount")}
        for name in ("observation", "next_observation"):
            prefix = name.removesuffix("observation")
            fields[name] = [
                columns[prefix + leaf.name]
                if leaf.stack == 1
                else _restack(leaf, columns[prefix + leaf.name], columns[f"{prefix}age"])
                for leaf in self.leaves["observation"]
            ]
        for name in ("action", "extras"):
            fields[name] = [columns[leaf.name] for leaf in self.leaves[name]]
        return fields

    def _sequence(self, columns: dict[str, np.ndarray]) -> dict[str, Any]:
        fields: dict[str, Any] = {name: columns[name] for name in ("reward", "discount", "mask")}
        fields["step_type"] = np.ascontiguousarray(columns["step_type"][:, self.depth - 1 :])
        for name in ("action", "extras"):
            fields[name] = [columns[leaf.name] for leaf in self.leaves[name]]
        if self.is_rollout:
            # The last row is the next window's first: what followed it is not known yet.
            for name in ("reward", "discount"):
                fields[name] = _with_zero_row(fields[name])
            for name in ("action", "extras"):
                fields[name] = [_with_zero_row(leaf) for leaf in fields[name]]
        fields["observation"] = [
            columns[leaf.name] if leaf.stack == 1 else self._restack_rows(leaf, columns)
            for leaf in self.leaves["observation"]
        ]
        return fields

    def _restack_rows(self, leaf: Leaf, columns: dict[str, np.ndarray]) -> np.ndarray:
        """Stacks for every row of a window, [M, T, ...], from its frames."""
        frames = columns[leaf.name]
        step_type = columns["step_type"][:, self.depth - leaf.stack :]
        places = np.arange(frames.shape[1])
        first = np.where(step_type == _FIRST, places, 0)
        np.maximum.accumulate(first, axis=1, out=first)
        wanted = places[: self.length, np.newaxis] + np.arange(leaf.stack)
        wanted = np.maximum(wanted, first[:, leaf.stack - 1 :, np.newaxis])
        batch = np.arange(len(frames))[:, np.newaxis, np.newaxis]
        stacked = leaf.restack(frames[batch, wanted], 2)
        stacked[columns["mask"] == 0.0] = 0
        return stacked


def _restack(leaf: Leaf, frames: np.ndarray, ages: np.ndarray) -> np.ndarray:
    """One stack of each row of frames, [M, stack, ...]: those before the episode give way."""
    last = leaf.stack - 1
    if ages.min() >= last:
        return leaf.restack(frames, 1)
    wanted = np.maximum(np.arange(leaf.stack), last - np.minimum(ages, last)[:, np.newaxis])
    return leaf.restack(frames[np.arange(len(frames))[:, np.newaxis], wanted], 1)


def _with_zero_row(array: np.ndarray) -> np.ndarray:
    """[M, T - 1, ...] as [M, T, ...], the last row zeros."""
    longer = np.zeros((array.shape[0], array.shape[1] + 1, *array.shape[2:]), array.dtype)
    longer[:, :-1] = array
    return longer
