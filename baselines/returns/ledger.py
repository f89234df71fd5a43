"""Rows of the ledger: what an agent came to on an environment at some commit, seed by seed.

Each agent, environment and launch has a file of rows, one JSON line each, the newest last.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from ...launch.errors import RequestError
from ...launch.files.result import versions
from ...launch.logging import groups
from ...launch.specification.recipe import Recipe
from .. import checkout
from .figures import Figures, first_difference

FOLDER = pathlib.Path(__file__).parent / "rows"
_OF_THE_MACHINE = ("folders", "wandb")


@dataclasses.dataclass(frozen=True)
class LedgerRow:
    """The figures of runs that differ in their seeds alone."""

    agent: str
    env: str
    launch: str
    commit: str
    """Of the package that ran, with a + where files differed from it."""
    versions: Mapping[str, str]
    settings: Mapping[str, Any]
    """All that decides what is learned and how that is judged, by dotted name."""
    seeds: Mapping[str, Figures]

    @classmethod
    def of(cls, recipe: Recipe, figures: Mapping[int, Figures], commit: str) -> LedgerRow:
        """Makes the row of runs, by seed, of a commit."""
        seeds = {str(seed): one for seed, one in figures.items()}
        task = recipe.agent, recipe.env, recipe.launch
        return cls(*task, commit, versions(), settings(recipe), seeds)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> LedgerRow:
        seeds = {seed: Figures(**one) for seed, one in values["seeds"].items()}
        return cls(**{**values, "seeds": seeds})

    def group(self, name: str) -> dict[str, Any]:
        """Returns the settings whose names begin with "NAME.", by the rest of their names."""
        start = f"{name}."
        return {
            key.removeprefix(start): value
            for key, value in self.settings.items()
            if key.startswith(start)
        }

    def check(self, recipe: Recipe) -> None:
        """Raises RequestError where runs of a recipe are not of these settings."""
        different = first_difference({**defaults(recipe), **self.settings}, settings(recipe))
        if different:
            raise RequestError(
                f"the newest row of {self.agent} on {self.env}, {self.launch}, of commit "
                f"{self.commit} has other settings: {different}; record a row of these first."
            )


def path_of(recipe: Recipe, folder: pathlib.Path | None = None) -> pathlib.Path:
    """Returns the file that rows of a recipe's agent, environment and launch are in.

    Args:
      recipe: of the runs.
      folder: of the ledger; None: that of the package.
    """
    return (folder or FOLDER) / f"{stem(recipe.agent, recipe.env, recipe.launch)}.jsonl"


def stem(agent: str, env: str, *launches: str) -> str:
    """Returns the name, without its ending, of a file about an agent, environment and launches."""
    words = agent.rpartition(":")[2], env, *launches
    return "-".join(re.sub(r"[^\w.]+", "_", word) for word in words)


def newest(recipe: Recipe, folder: pathlib.Path | None = None) -> LedgerRow:
    """Returns the newest row of a recipe's agent, environment and launch.

    Raises:
      RequestError: if there is none, or it is of other settings.
    """
    row = last(recipe, folder)
    row.check(recipe)
    return row


def last(recipe: Recipe, folder: pathlib.Path | None = None) -> LedgerRow:
    """Returns the newest row of a recipe's agent, environment and launch, of whatever settings.

    Raises:
      RequestError: if there is none.
    """
    path = path_of(recipe, folder)
    rows = read(path) if path.exists() else []
    if not rows:
        raise RequestError(
            f"the ledger has no row of {recipe.agent} on {recipe.env}, {recipe.launch} ({path}); "
            "record one first."
        )
    return rows[-1]


def read(path: pathlib.Path) -> list[LedgerRow]:
    """Reads the rows of a file, the oldest first.

    Raises:
      RequestError: if a line is no row, naming it.
    """
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            rows.append(LedgerRow.from_json(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise RequestError(f"line {number} of {path} is no row: {error}.") from error
    return rows


def append(row: LedgerRow, recipe: Recipe, folder: pathlib.Path | None = None) -> pathlib.Path:
    """Appends a row, and returns its file."""
    path = path_of(recipe, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        file.write(json.dumps(dataclasses.asdict(row)) + "\n")
    return path


def defaults(recipe: Recipe) -> dict[str, Any]:
    """Returns the defaults of fields of the config: one that an earlier commit has not has done
    what its default does."""
    usual = settings(dataclasses.replace(recipe, config={}))
    return {name: one for name, one in usual.items() if name.startswith("config.")}


def settings(recipe: Recipe) -> dict[str, Any]:
    """Returns what decides what runs of a recipe learn, but for their seeds."""
    flat = groups.learning_settings(json.loads(json.dumps(recipe.to_json())))
    return {name: one for name, one in flat.items() if name.split(".")[0] not in _OF_THE_MACHINE}


def commit() -> str:
    """Returns the commit of this package, with a + where its files differ from that.

    Raises:
      RequestError: if it is not a checkout.
    """
    return checkout.commit("a row names its commit")
