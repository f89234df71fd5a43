"""The parameters of whoever acts, fetched from their source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..interfaces import VariableSource

Nest = Any
Place = Callable[[Nest], Nest]
"""Brings variables to where they are used."""


class MeshVariables:
    """The variables of a partitioned learner of this process, as its mesh holds them.

    A policy that is given them is computed over that mesh.
    """

    def __init__(self, learner: Any):
        self._learner = learner

    @property
    def version(self) -> int:
        return self._learner.version

    def get_variables(self, names: Sequence[str] = ("policy",)) -> list[Nest]:
        """Copies that stay spread; see `SGDLearner.variables_on_mesh`."""
        return self._learner.variables_on_mesh(names)


class VariableClient:
    """Holds the newest variables seen of a source, on the device that uses them.

    A source that has an attribute `version` is asked for variables only when it has changed; any
    other, such as acme's, on every `period`-th update.
    """

    def __init__(
        self,
        source: VariableSource,
        names: Sequence[str] = ("policy",),
        *,
        device: jax.Device | None = None,
        period: int = 1,
    ):
        if period < 1:
            raise ValueError(f"period is {period}; it must be at least 1.")
        self._source = source
        self._names = tuple(names)
        self._device = device
        self._period = period
        self._calls = 0
        self._version: object = None
        self._variables: list[Nest] | None = None
        self._place: Place | None = None

    def place_by(self, place: Place) -> None:
        """Has newer variables brought to where they are used as they come.

        A source that fetches in a thread of its own does so there: what fails is asked for again,
        and the version before is used meanwhile.

        Args:
          place: `params -> params`.
        """
        if len(self._names) == 1 and hasattr(self._source, "place_by"):
            self._source.place_by(self._names[0], place)
        else:
            self._place = place

    @property
    def params(self) -> Nest:
        """The variables of the only name, or their list where there are several."""
        if self._variables is None:
            self.update(wait=True)
        assert self._variables is not None
        return self._variables[0] if len(self._names) == 1 else self._variables

    def ask(self) -> None:
        """Has a source that keeps up by asking now and then ask at once."""
        if (ask := getattr(self._source, "ask", None)) is not None:
            ask()

    def update(self, wait: bool = False) -> None:
        """Fetches what is newer. In one process there is nothing to wait for."""
        version = getattr(self._source, "version", None)
        if version is None:
            self._calls += 1
            due = wait or self._variables is None or self._calls % self._period == 0
        else:
            due = version != self._version
        if due:
            variables = self._source.get_variables(self._names)
            if self._device is not None:
                variables = jax.device_put(variables, self._device)
            if self._place is not None and len(self._names) == 1:
                variables = [self._place(variables[0])]
            elif self._place is not None:
                variables = self._place(variables)
            self._variables = variables
            self._version = version
