"""Datasets of Minari (https://minari.farama.org) on this machine. Nothing is downloaded."""

from __future__ import annotations

import operator
import os
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ...environments import spaces
from .. import extras
from ..errors import RequestError

if TYPE_CHECKING:
    from ...agents.replay.offline.dataset import Dataset, Episode

_METADATA = "metadata.json"


def find(name: str) -> pathlib.Path | None:
    """The folder of a dataset's files, by its name or its path; None where there is none."""
    for folder in (pathlib.Path(name), _root() / name):
        for inner in (folder / "data", folder):
            if (inner / _METADATA).is_file():
                return inner
    return None


def names() -> list[str]:
    """Returns the names of the local datasets."""
    files = _root().glob(f"**/data/{_METADATA}")
    return sorted(str(file.parent.parent.relative_to(_root())) for file in files)


def read(name: str) -> Dataset:
    """A local dataset, with the types that environments have here: 32 bits, counted from 0.

    Args:
      name: as Minari names it ("D4RL/door/human-v2"), or a path.

    Raises:
      RequestError: if Minari is not installed, or there is no such dataset.
      ValueError: if it is damaged, or its spaces have no specs.
    """
    folder = find(name)
    if folder is None:
        known = ", ".join(names()) or "none"
        raise RequestError(
            f"there is no Minari dataset {name!r} in {_root()} (MINARI_DATASETS_PATH); there are "
            f"{known}; `minari download` fetches others."
        )
    minari = extras.require("minari", "minari", "reading a Minari dataset")
    from ...agents.replay.offline.dataset import of_episodes

    try:
        found = minari.MinariDataset(folder)
        observations = spaces.observation_spec(found.observation_space)
        actions = spaces.action_spec(found.action_space, "clip")
        episodes = list(_episodes(found))
    except (OSError, KeyError, TypeError, AssertionError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RequestError(f"the Minari dataset in {folder} is damaged: {reason}.") from error
    return of_episodes(observations, actions, episodes, f"Minari's {found.id}")


def _episodes(dataset: Any) -> Iterator[Episode]:
    from ...agents.replay.offline.dataset import Episode as Made

    observed = spaces.observation_reader(dataset.observation_space)
    acted = spaces.observation_reader(dataset.action_space)
    for episode in dataset.iterate_episodes():
        # An observation more than there are actions: without the last, the last action has none.
        length = len(jax.tree.leaves(episode.observations)[0]) - 1
        if length < 0 or length > len(episode.rewards):
            raise ValueError(f"episode {episode.id} has {length + 1} observations")
        yield Made(
            observed(episode.observations),
            jax.tree.map(operator.itemgetter(slice(length)), acted(episode.actions)),
            np.asarray(episode.rewards[:length], np.float32),
            1.0 - np.asarray(episode.terminations[:length], np.float32),
        )


def _root() -> pathlib.Path:
    """Returns the folder of Minari's datasets. Its own function makes it; reading must not."""
    given = os.environ.get("MINARI_DATASETS_PATH")
    return pathlib.Path(given) if given else pathlib.Path.home() / ".minari" / "datasets"
