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
    """A local program that a pass wrote, with what it takes to write the same again.

    Attributes:
      program: the program; the given one where nothing had to change.
      mesh: sizes of the axes that its layouts name.
      simulate: predicts what it costs.
      note: what was done, in words.
      figures: what was done, by name, as a plan's JSON has it.
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
