"""The local program that a pass behind the tactics writes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from .ir.program import Program
from .simulator.simulate import Simulation

#: `Rewritten.to_json`.
Saved = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Rewritten:
    """A local program that a pass wrote, with the data to write it again.

    Attributes:
      program: the program; the given one where nothing had to change.
      mesh: sizes of the axes that its layouts name.
      simulate: predicts its cost.
      note: the changes in words.
      figures: the changes in figures by name, as a plan's JSON has them.
      recipe: plain data from which the pass writes the same program without a search.
    """

    program: Program
    mesh: Mapping[str, int]
    simulate: Callable[[], Simulation]
    note: str
    figures: Mapping[str, Any]
    recipe: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def simulation(self) -> Simulation:
        """The cost of the program."""
        return self.simulate()

    def to_json(self) -> Saved:
        """Note, figures and recipe, to be carried out again."""
        return {"note": self.note, "figures": dict(self.figures), "recipe": dict(self.recipe)}
