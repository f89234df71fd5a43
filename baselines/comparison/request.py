"""The request of a comparison, as values that its directory keeps."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from ...launch.errors import RequestError
from ...launch.files.directory import RunDirectory
from ...launch.specification.recipe import Recipe
from ..returns.figures import first_difference
from ..returns.ledger import LedgerRow
from .elsewhere import Elsewhere
from .scales import Scale, parse_scales
from .verdicts import ComparisonRule

FILE = "compare.json"
AGAINST = "against"
"""Folder of the runs of other code."""
LEAST_BATCH = 5
"""With fewer seeds, some that fail by chance look like a difference."""
PART = 0.1
"""Of the range of returns: the margin where none is named."""
_PAIRABLE = ("one-process", "compiled")
"""Launches whose runs take their draws in one order, whatever the machine's load."""
_MAY_CHANGE = ("seeds", "parallel")


@dataclasses.dataclass(frozen=True)
class ComparisonRequest:
    """Runs of one recipe at several scales, and the rule that they are compared by."""

    recipe: Recipe
    """Of every run, but for the scale and the seed; its seed is the first."""
    scales: tuple[str, ...]
    """As the command line names them; all are compared with the first, or with the reference."""
    rule: ComparisonRule
    seeds: int
    """The most runs at each scale."""
    parallel: int = 1
    """Processes that run at the same time, as of a grid."""
    random: float | None = None
    """Return of uniform actions; None: the margin was named."""
    target: float | None = None
    reference: LedgerRow | None = None
    """Row of the ledger that one scale is compared with; None: the first scale stands for it."""
    against: Elsewhere | None = None
    """Other code or packages, of which runs at one scale are compared with those of these; None:
    all is of these."""

    def __post_init__(self) -> None:
        if self.reference is not None:
            self._check_reference(self.reference)
        elif self.against is not None:
            self._check_one_scale(self.against.name)
        elif len(self.scales) < 2:
            raise RequestError(
                f"{len(self.scales)} scale is nothing to compare; name at least 2 with --scales."
            )
        if self.rule.batch < LEAST_BATCH:
            raise RequestError(
                f"{self.rule.batch} seed{'s' * (self.rule.batch > 1)} between looks cannot tell a "
                f"scale from chance; take a --batch of at least {LEAST_BATCH}."
            )
        if self.seeds < self.rule.batch:
            raise RequestError(
                f"--seeds {self.seeds} is less than a --batch of {self.rule.batch}; take at least "
                f"as many, and {self.rule.first} where equal returns are to be shown."
            )
        parse_scales(self.scales)

    @property
    def first(self) -> str:
        """The name of what all others are compared with."""
        if self.reference is not None:
            return f"{self.reference.launch} of {self.reference.commit}"
        return self.scales[0] + (f" of {self.against.name}" if self.against else "")

    @property
    def others(self) -> tuple[str, ...]:
        """The scales that are compared with it."""
        return self.scales[1:] if self.reference is None and self.against is None else self.scales

    def recipes(self) -> dict[str, Recipe]:
        """Returns the recipe of each scale."""
        return {one.text: one.of(self.recipe) for one in parse_scales(self.scales)}

    def folder(self, scale: str) -> str:
        """Returns the name of the folder of a scale's runs, or of those of the other code."""
        if self.against is not None and scale == self.first:
            return AGAINST
        return Scale.parse(scale).folder

    def paired(self) -> frozenset[str]:
        """Returns the scales whose runs share the draws of the first scale's, seed by seed.

        One process, over whatever devices, draws in one order: runs of a seed begin as one and part
        by rounding. Actors of other launches act when they come to it, and a compiled run draws
        from keys of its own.
        """
        launch = Scale.parse(self.scales[0]).launch
        same = [one for one in self.others if Scale.parse(one).launch == launch]
        return frozenset(same if launch in _PAIRABLE else ())

    def write(self, folder: pathlib.Path) -> None:
        """Writes it into the directory of the comparison, which is made.

        A comparison that is there goes on where it was asked for alike; more seeds may be asked for
        and other processes.

        Raises:
          RequestError: if it was asked for otherwise, something else is in the directory, or that
            cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / FILE).exists():
                self._check_same(read(folder))
            elif any(folder.iterdir()):
                raise RequestError(
                    f"{folder} is not empty, and holds no comparison; name another --out."
                )
            RunDirectory(folder).write(folder / FILE, self.to_json())
        except OSError as error:
            raise RequestError(
                f"cannot write into {folder}: {error.strerror or error}; name another --out."
            ) from error

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "recipe": self.recipe.to_json()}

    def _check_reference(self, row: LedgerRow) -> None:
        self._check_one_scale("a row of the ledger")
        row.check(self.recipes()[self.scales[0]])
        missing = [
            seed
            for seed in range(self.recipe.seed, self.recipe.seed + self.seeds)
            if str(seed) not in row.seeds
        ]
        if missing:
            raise RequestError(
                f"the newest row of the ledger has {len(row.seeds)} seeds, and not seed "
                f"{missing[0]}; take fewer --seeds."
            )

    def _check_one_scale(self, what: str) -> None:
        if len(self.scales) != 1:
            raise RequestError(
                f"{what} is compared with one scale, not with {len(self.scales)}; name one with "
                "--scales."
            )

    def difference(self, found: Mapping[str, Any]) -> str | None:
        """Names the first difference from another request's JSON; None: it was asked for alike."""
        asked = {**self.to_json(), **{name: found.get(name) for name in _MAY_CHANGE}}
        return first_difference(found, json.loads(json.dumps(asked)))

    def _check_same(self, other: ComparisonRequest) -> None:
        different = self.difference(json.loads(json.dumps(other.to_json())))
        if different:
            raise RequestError(
                f"the comparison there was asked for otherwise: {different}; name another --out."
            )


def read(folder: pathlib.Path) -> ComparisonRequest:
    """Reads the request of a comparison from its directory.

    Raises:
      RequestError: if it cannot be read.
    """
    try:
        values: Mapping[str, Any] = json.loads((folder / FILE).read_text())
        parts = {
            "recipe": Recipe.from_json(values["recipe"]),
            "rule": ComparisonRule(**values["rule"]),
            "scales": tuple(values["scales"]),
            "reference": values["reference"] and LedgerRow.from_json(values["reference"]),
            "against": values.get("against") and Elsewhere(**values["against"]),
        }
        return ComparisonRequest(**{**values, **parts})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(f"cannot read {folder / FILE}: {error}.") from error
