"""A dataset: the rows of whole episodes, one after another.

Rows are those of a replay (see `items`): the row of time t has the observation and step type of t,
the action taken at t, and the reward and discount that came of it. R: rows, T: actions of an
episode, which has T + 1 rows; the last one's action, reward and discount mean nothing and are 0. An
episode that is cut short ends as a truncated one does, with a discount of 1.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from dm_env import StepType, specs

from ....environments import action_masks
from ....environments.specs import describe
from ..embedded.rows import Column
from ..nests import Structure

Nest = Any
_FIRST, _MID, _LAST = (int(kind) for kind in StepType)
_BLOCK = 1 << 16
"""Rows looked at together: data may be larger than memory."""


class Episode(NamedTuple):
    """Steps of a policy in an environment, from a first observation to a last one."""

    observation: Nest
    """[T + 1, ...]"""
    action: Nest
    """[T, ...]"""
    reward: np.ndarray
    """[T]"""
    discount: np.ndarray
    """[T]: 0 where the episode terminated"""


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Episodes as rows. The arrays are only read, and may be maps of a file."""

    observations: Nest
    """Spec of an observation."""
    actions: Nest
    """Spec of an action."""
    observation: tuple[np.ndarray, ...]
    """Leaves [R, ...]; of a `StackedArray` the newest frame."""
    action: tuple[np.ndarray, ...]
    """Leaves [R, ...]"""
    reward: np.ndarray
    """[R] float32"""
    discount: np.ndarray
    """[R] float32"""
    step_type: np.ndarray
    """[R] int32, dm_env.StepType"""
    source: str
    """Its origin, for messages."""

    def __post_init__(self) -> None:
        """Looks at every row once.

        Raises:
          ValueError: if arrays do not fit their specs or one another, rows are no episodes, there
            is no transition, a number is not finite or out of its bounds, or an action was illegal;
            names the first.
        """
        leaves = self._leaves()
        for name, spec, array in leaves:
            if array.shape[1:] != spec.shape or array.dtype != spec.dtype:
                self._refuse(
                    f"its {name} is {array.dtype}{list(array.shape[1:])} where its spec says "
                    f"{spec.dtype}{list(spec.shape)}"
                )
        lengths = {len(array) for _, _, array in leaves}
        if len(lengths) > 1:
            self._refuse(f"its arrays have {sorted(lengths)} rows")
        if not self.num_transitions:
            self._refuse("it holds no transition")
        self._check_order()
        for begin in range(0, len(self.step_type), _BLOCK):
            rows = slice(begin, begin + _BLOCK)
            acted = self.step_type[rows] != _LAST
            for name, spec, array in leaves:
                # What the last row of an episode says of an action is of no meaning.
                mask = True if name.startswith("observation") else acted
                self._check_values(name, spec, np.asarray(array[rows]), mask, begin)
            self._check_legal(rows, acted)

    def _leaves(self) -> list[tuple[str, Any, np.ndarray]]:
        """(name, spec of a row, array) of every array."""
        found = []
        for field, nest, arrays in (
            ("observation", self.observations, self.observation),
            ("action", self.actions, self.action),
        ):
            paths = jax.tree_util.tree_flatten_with_path(nest)[0]
            if len(paths) != len(arrays):
                self._refuse(f"its {field} has {len(arrays)} arrays, its spec {len(paths)}")
            for (path, spec), array in zip(paths, arrays, strict=True):
                name = f"{field}{jax.tree_util.keystr(path)}"
                found.append((name, getattr(spec, "frame", spec), array))
        found.append(("reward", specs.Array((), np.float32), self.reward))
        found.append(("discount", specs.BoundedArray((), np.float32, 0.0, 1.0), self.discount))
        found.append(("step_type", specs.Array((), np.int32), self.step_type))
        return found

    def _check_order(self) -> None:
        kinds = np.asarray(self.step_type)
        first, last = kinds == _FIRST, kinds == _LAST
        known = first | last | (kinds == _MID)
        follows = np.append(True, last[:-1])
        wrong = ~known | (first != follows)
        wrong[-1] |= not last[-1]
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            self._refuse(f"its rows are no whole episodes: row {row} is of step type {kinds[row]}")

    def _check_values(self, name: str, spec: Any, block: np.ndarray, mask: Any, begin: int) -> None:
        if name == "step_type":
            return
        wrong = np.zeros(block.shape, bool)
        if block.dtype.kind not in "iub":
            wrong = ~np.isfinite(block)
        # Real actions may lie beyond their bounds, where the environment moves them onto those.
        if isinstance(spec, specs.BoundedArray) and (block.dtype.kind in "iu" or not spec.shape):
            wrong |= (block < spec.minimum) | (block > spec.maximum)
        at = wrong.reshape(len(block), -1).any(axis=1) & mask
        if at.any():
            row = int(np.flatnonzero(at)[0])
            value = " ".join(str(block[row]).split())[:60]
            self._refuse(f"its {name} at row {begin + row} is {value}")

    def _check_legal(self, rows: slice, acted: np.ndarray) -> None:
        structure = jax.tree.structure(self.observations)
        mask = action_masks.find(jax.tree.unflatten(structure, self.observation))
        if mask is None:
            return
        (action,), at = self.action, np.flatnonzero(acted)
        chosen = np.asarray(action[rows])[at]
        illegal = ~action_masks.allowed(np.asarray(mask[rows])[at], self.actions, chosen)
        if illegal.any():
            first = int(illegal.argmax())
            self._refuse(
                f"its action {chosen[first].tolist()} at row {rows.start + at[first]} is illegal "
                f"by the observation's {action_masks.KEY}"
            )

    def _refuse(self, what: str) -> None:
        raise ValueError(f"the data of {self.source} cannot be learned from: {what}.")

    @property
    def num_transitions(self) -> int:
        """Actions taken."""
        return int(np.count_nonzero(np.asarray(self.step_type) != _LAST))

    @property
    def num_episodes(self) -> int:
        """Episodes, those cut short among them."""
        return int(np.count_nonzero(np.asarray(self.step_type) == _LAST))

    @property
    def returns(self) -> np.ndarray:
        """The sum of rewards of every episode, [number of episodes]."""
        (starts,) = np.nonzero(np.asarray(self.step_type) == _FIRST)
        return np.add.reduceat(np.asarray(self.reward, np.float64), starts)

    @property
    def fingerprint(self) -> str:
        """Identifies the dataset by its size and a checksum of step types, rewards and actions."""
        total = 0
        for array in (self.step_type, self.reward, *self.action):
            total = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, total)
        return f"{self.num_transitions}-{total:08x}"

    def require(self, spec: Any) -> None:
        """Compares the dataset with the environment that a policy is to be learned for.

        Raises:
          ValueError: if observations or actions are of another kind.
        """
        for name, ours, theirs in (
            ("observations", self.observations, spec.observations),
            ("actions", self.actions, spec.actions),
        ):
            if not _same(ours, theirs, bounded=name == "actions"):
                raise ValueError(
                    f"the data of {self.source} is of another environment: its {name} are "
                    f"{_describe(ours)}, those here {_describe(theirs)}."
                )


def of_episodes(
    observations: Nest, actions: Nest, episodes: Iterable[Episode], source: str
) -> Dataset:
    """A dataset in memory.

    Args:
      observations: spec of an observation.
      actions: spec of an action.
      episodes: of at least one action each; those without are left out.
      source: where they are from.

    Raises:
      ValueError: if they do not fit the specs or cannot be learned from.
    """
    structures = Structure(observations, "observation"), Structure(actions, "action")
    stacks = [Column(spec, 1, None) for spec in structures[0].specs]
    columns: list[list[np.ndarray]] = [[] for _ in range(5)]
    parts: tuple[list[list[np.ndarray]], ...] = tuple(
        [[] for _ in structure.specs] for structure in structures
    )
    for episode in _at_least_one_action(episodes):
        length = len(episode.reward)
        try:
            seen = structures[0].flatten(episode.observation)
            acted = structures[1].flatten(episode.action)
        except ValueError as error:
            message = f"the data of {source} has not the structure of its spec: {error}"
            raise ValueError(message) from None
        for part, column, leaf in zip(parts[0], stacks, seen, strict=True):
            part.append(column.kept(np.asarray(leaf)))
        for part, leaf in zip(parts[1], acted, strict=True):
            part.append(_padded(np.asarray(leaf)))
        columns[0].append(_padded(np.asarray(episode.reward, np.float32)))
        columns[1].append(_padded(np.asarray(episode.discount, np.float32)))
        columns[2].append(np.array([_FIRST, *[_MID] * (length - 1), _LAST], np.int32))
    if not columns[2]:
        raise ValueError(f"the data of {source} cannot be learned from: it holds no transition.")
    reward, discount, step_type = (np.concatenate(column) for column in columns[:3])
    observation, action = (tuple(map(np.concatenate, part)) for part in parts)
    return Dataset(observations, actions, observation, action, reward, discount, step_type, source)


def _at_least_one_action(episodes: Iterable[Episode]) -> Iterator[Episode]:
    return (episode for episode in episodes if len(episode.reward))


def _padded(array: np.ndarray) -> np.ndarray:
    """With a row of zeros behind the others."""
    return np.concatenate([array, np.zeros_like(array[:1])])


def _same(ours: Nest, theirs: Nest, *, bounded: bool) -> bool:
    """True if values of one spec are values of the other."""
    structures: list[Any] = [jax.tree.structure(nest) for nest in (ours, theirs)]
    if structures[0] != structures[1]:
        return False
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if isinstance(a, specs.DiscreteArray) != isinstance(b, specs.DiscreteArray):
            return False
        # The same box may be given in other units: what it holds then means something else.
        if (bounded or isinstance(a, specs.DiscreteArray)) and _bounds(a) != _bounds(b):
            return False
    return True


def _bounds(spec: Any) -> tuple[list[float], ...]:
    low, high = -np.inf, np.inf
    if isinstance(spec, specs.BoundedArray):
        low, high = spec.minimum, spec.maximum
    return tuple(
        np.broadcast_to(np.asarray(bound, np.float32), spec.shape).ravel().tolist()
        for bound in (low, high)
    )


def _describe(spec: Nest) -> str:
    """One line, with the bounds of a box."""
    text = describe(spec)
    if isinstance(spec, specs.BoundedArray) and not isinstance(spec, specs.DiscreteArray):
        text += f" from {float(np.min(spec.minimum)):g} to {float(np.max(spec.maximum)):g}"
    return text
