"""The request of a grid of runs, as values that its directory keeps."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ...launch.errors import RequestError
from ...launch.files.directory import RunDirectory
from ...launch.specification import fields
from ...launch.specification.recipe import Recipe

FILE = "grid.json"


@dataclasses.dataclass(frozen=True)
class GridRun:
    """One run of a grid."""

    name: str
    """Of its directory within that of the grid: settings, if there are several, and the seed."""
    settings: Mapping[str, Any]
    """Values of the fields that the grid is over."""
    recipe: Recipe


@dataclasses.dataclass(frozen=True)
class GridRequest:
    """Runs of every combination of settings, with every seed."""

    recipe: Recipe
    """Of every run, but for the settings and the seed; its seed is the first."""
    settings: Mapping[str, Sequence[Any]]
    """Values by field of the config; empty: the runs differ in their seed alone."""
    seeds: int
    """Runs of each combination."""
    parallel: int = 1
    """Processes that run at the same time. Where it is 1, compiled runs are one program, and others
    run one after another in this process."""

    def runs(self) -> list[GridRun]:
        """Returns the runs, those of a combination together."""
        found = []
        for values in itertools.product(*self.settings.values()):
            settings = dict(zip(self.settings, values, strict=True))
            folder = ",".join(f"{name}={fields.text(value)}" for name, value in settings.items())
            config = {**self.recipe.config, **settings}
            for number in range(self.seeds):
                seed = self.recipe.seed + number
                name = f"{folder}/{seed}" if folder else str(seed)
                recipe = dataclasses.replace(self.recipe, config=config, seed=seed)
                found.append(GridRun(name, settings, recipe))
        return found

    def write(self, folder: pathlib.Path) -> None:
        """Writes it into the grid's directory, which is made.

        Raises:
          RequestError: if something is in the directory, or it cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise RequestError(
                    f"{folder} is not empty; go on with `troupe resume {folder}` or name another "
                    "with --out."
                )
            self.rewrite(folder)
        except OSError as error:
            raise RequestError(
                f"cannot write into {folder}: {error.strerror or error}; name another with --out."
            ) from error

    def rewrite(self, folder: pathlib.Path) -> None:
        """Writes it in place of what its directory says."""
        values = {**dataclasses.asdict(self), "recipe": self.recipe.to_json()}
        RunDirectory(folder).write(folder / FILE, values)


def split(
    config_class: type, overrides: Mapping[str, Any]
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Divides settings into numbers that have several values, as in 1e-4,3e-4, and all others.

    Args:
      config_class: of the agent.
      overrides: by field, as the command line or a config file gives them.

    Raises:
      RequestError: if one of several values cannot be.
    """
    known = fields.fields(config_class)
    several: dict[str, list[Any]] = {}
    fixed = {}
    for name, value in overrides.items():
        field = known.get(name)
        if field is not None and isinstance(value, str) and "," in value:
            try:
                field.parse(value)
            except RequestError:  # It is no list: these are values to choose from.
                several[name] = [field.parse(one) for one in value.split(",") if one.strip()]
                continue
        fixed[name] = value
    return several, fixed


def read(folder: pathlib.Path) -> GridRequest:
    """Reads the request of a grid from its directory.

    Raises:
      RequestError: if it cannot be read.
    """
    try:
        values = json.loads((folder / FILE).read_text())
        return GridRequest(**{**values, "recipe": Recipe.from_json(values["recipe"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(f"cannot read {folder / FILE}: {error}.") from error
