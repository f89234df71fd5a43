"""The request of a sweep, as values that its directory keeps."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from ...launch.errors import RequestError
from ...launch.specification import fields, origins
from ...launch.specification.recipe import Recipe
from . import space as spaces
from .space import Space

FILE = "sweep.json"


@dataclasses.dataclass(frozen=True)
class SweepRequest:
    """The sweep that `troupe sweep` was asked for."""

    recipe: Recipe
    """Of every run, but for the swept fields and the seed."""
    space: Space
    trials: int = 20
    seeds: int = 1
    """Runs of each trial, whose final returns are averaged."""
    prune: bool = True

    def __post_init__(self) -> None:
        if not self.space:
            raise RequestError(
                "nothing is swept: give at least one --config.FIELD a range (1e-4:1e-2:log) or "
                "several values (32,64)."
            )

    def usual(self) -> dict[str, Any] | None:
        """The settings without a sweep, as a trial has them; None where the space lacks them."""
        config = self._config_class()
        usual = fields.make(config, self.recipe.config)
        values = {name: getattr(usual, name) for name in self.space}
        if not all(one.holds(values[name]) for name, one in self.space.items()):
            return None
        return {
            name: fields.text(values[name]) if isinstance(one, spaces.Choices) else values[name]
            for name, one in self.space.items()
        }

    def config(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The agent's config of a trial, for JSON: all of it, whatever else is tuned elsewhere."""
        kind = self._config_class()
        made = fields.make(kind, {**self.recipe.config, **settings})
        return json.loads(json.dumps({name: getattr(made, name) for name in fields.fields(kind)}))

    def _config_class(self) -> type:
        return origins.find_builder(self.recipe.agent, self.recipe.folders).config_class

    def to_json(self) -> dict[str, Any]:
        recipe = self.recipe
        choices = [one.texts for one in self.space.values() if isinstance(one, spaces.Choices)]
        tried = {text: text for texts in choices for text in texts}
        names = (recipe.agent, recipe.env, *origins.names_in({**recipe.config, **tried}))
        folders = {**recipe.folders, **origins.folders_of(*names)}
        return {
            "recipe": {**dataclasses.asdict(recipe), "folders": folders},
            "space": spaces.to_json(self.space),
            "trials": self.trials,
            "seeds": self.seeds,
            "prune": self.prune,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SweepRequest:
        """The inverse of `to_json`."""
        recipe = Recipe.from_json(values["recipe"])
        space = spaces.from_json(values["space"])
        return cls(recipe, space, values["trials"], values["seeds"], values["prune"])


def read(folder: pathlib.Path) -> SweepRequest:
    """Reads the request of a sweep from its directory.

    Raises:
      RequestError: if this is not the directory of a sweep.
    """
    try:
        return SweepRequest.from_json(json.loads((folder / FILE).read_text())["request"])
    except (FileNotFoundError, NotADirectoryError):
        raise RequestError(f"{folder} is not a sweep's directory: no {FILE}.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(f"cannot read {folder / FILE}: {error}.") from error
