"""The episodes that a checkpointed replay holds: what `EmbeddedReplay.save` gave, as a dataset.

S: streams. Of n-step transitions the replay has the sums of rewards and no rewards. Those of an
episode follow from its last one backwards: its last window is one step long. So an episode that
had not ended is left out where n > 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dm_env import StepType

from ..items import WAITING, Item, Rollouts, Transitions
from ..nests import Structure
from .dataset import Dataset, Episode, of_episodes

Nest = Any
_FIRST = int(StepType.FIRST)


def of_replay(
    state: dict[str, Any], item: Item, observations: Nest, actions: Nest, source: str
) -> Dataset:
    """A dataset of what a replay held.

    Args:
      state: as `EmbeddedReplay.save` gave it.
      item: what its items were.
      observations: spec of an observation.
      actions: spec of an action.
      source: where it is from, for messages.

    Raises:
      ValueError: if it holds no episode that can be told.
    """
    if isinstance(item, Rollouts):
        raise ValueError(
            f"the replay of {source} holds the newest rollouts and no others; record the run's "
            "policy with `troupe record`."
        )
    rows = _History(state["rows"], observations, actions)
    if isinstance(item, Transitions):
        episodes = _of_transitions(state["entries"], item, rows)
    else:
        episodes = _of_windows(state["entries"], rows)
    return of_episodes(observations, actions, episodes, source)


class _History:
    """The rows that are still held, by number and stream."""

    def __init__(self, state: dict[str, Any], observations: Nest, actions: Nest):
        self.capacity, self.written = int(state["capacity"]), int(state["written"])
        lead = state["age"].ndim - 1
        self.streams = int(np.prod(state["age"].shape[1:], dtype=np.int64))
        self._columns = {
            name: [
                leaves[str(i)].reshape(
                    len(state["age"]), self.streams, *leaves[str(i)].shape[1 + lead :]
                )
                for i in range(len(leaves))
            ]
            for name, leaves in state["columns"].items()
        }
        self._observed = Structure(observations, "observation")
        self._acted = Structure(actions, "action")

    def read(self, name: str, rows: np.ndarray, stream: int) -> list[np.ndarray]:
        """The leaves of a field."""
        return [column[rows % self.capacity, stream] for column in self._columns[name]]

    def episode(self, first: int, stream: int, reward: np.ndarray, discount: np.ndarray) -> Episode:
        """That of an action for every reward, the first at row `first`."""
        rows = np.arange(first, first + len(reward) + 1)
        seen = self.read("observation", rows, stream)
        for i, spec in enumerate(self._observed.specs):
            if getattr(spec, "stack", 1) > 1:  # Kept was the newest frame alone.
                seen[i] = np.expand_dims(seen[i], spec.axis)
        observation = self._observed.unflatten(seen)
        action = self._acted.unflatten(self.read("action", rows[:-1], stream))
        return Episode(observation, action, reward, discount)


def _of_transitions(
    state: dict[str, Any], item: Transitions, history: _History
) -> Iterator[Episode]:
    """Of every action's row there is an item, in the order of the rows; of a last row is none."""
    held = np.arange(int(state["first"]), int(state["next"])) % int(state["max_size"])
    columns = {name: np.asarray(column)[held] for name, column in state["columns"].items()}
    streams = columns.get("stream", np.zeros(len(held), np.int32))
    spans = columns.get("span", np.ones(len(held), np.int32))
    for stream in range(history.streams):
        (at,) = np.nonzero(streams == stream)
        at = at[np.argsort(columns["row"][at], kind="stable")]
        rows = columns["row"][at]
        for part in np.split(np.arange(len(at)), np.flatnonzero(np.diff(rows) != 1) + 1):
            if not len(part):
                continue
            reward, discount = (columns[name][at[part]] for name in ("reward", "discount"))
            if item.n_step > 1:
                span = spans[at[part]]
                if span[-1] != 1:
                    continue  # It had not ended.
                reward = _single_rewards(reward, span, item.discount)
                discount = _single_discounts(discount, span, item.discount)
            yield history.episode(int(rows[part[0]]), stream, reward, discount)


def _single_rewards(sums: np.ndarray, spans: np.ndarray, gamma: float) -> np.ndarray:
    """The rewards [T] whose discounted sums over `spans` steps are given, both [T]."""
    rewards = np.asarray(sums, np.float64)
    powers = gamma ** np.arange(int(spans.max()))
    for i in range(len(rewards) - 1, -1, -1):
        span = int(spans[i])
        rewards[i] -= rewards[i + 1 : i + span] @ powers[1:span]
    return rewards.astype(np.float32)


def _single_discounts(products: np.ndarray, spans: np.ndarray, gamma: float) -> np.ndarray:
    """The discounts [T] whose products over `spans` steps are given: 1 but for the last.

    Raises:
      ValueError: if there were others, which products do not tell.
    """
    discounts = np.ones(len(products), np.float32)
    discounts[-1] = products[-1]
    reaches = np.arange(len(spans)) + spans == len(spans)
    expected = np.where(reaches, products[-1], 1.0) * gamma ** (spans - 1)
    if not np.allclose(products, expected, rtol=1e-4, atol=1e-6):
        raise ValueError(
            "an environment that discounts between its steps leaves no single discounts in a "
            "replay of n-step transitions; train with n_step 1, or `troupe record` its policy."
        )
    return discounts


def _of_windows(state: dict[str, Any], history: _History) -> Iterator[Episode]:
    """Rows hold all that came of them; those from the oldest item on are whole."""
    slots = np.arange(int(state["first"]), int(state["next"])) % int(state["max_size"])
    if not len(slots):
        return
    oldest = int(np.asarray(state["columns"]["row"])[slots].min())
    rows = np.arange(max(oldest, history.written - history.capacity), history.written)
    for stream in range(history.streams):
        (kinds,), (rewards,), (discounts,) = (
            history.read(name, rows, stream) for name in ("step_type", "reward", "discount")
        )
        for part in np.split(np.arange(len(rows)), np.flatnonzero(kinds == _FIRST)):
            part = part[kinds[part] != WAITING]
            # Of the row that was begun last nothing is known but its observation.
            length = len(part) - 1
            if length > 0:
                acted = part[:length]
                first = int(rows[part[0]])
                yield history.episode(first, stream, rewards[acted], discounts[acted])
