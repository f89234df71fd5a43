"""The parameters of whoever acts, fetched from their source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from ..interfaces import VariableSource

Nest = Any


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

    @property
    def params(self) -> Nest:
        """The variables of the only name, or their list where there are several."""
        if self._variables is None:
            self.update(wait=True)
        assert self._variables is not None
        return self._variables[0] if len(self._names) == 1 else self._variables

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
            self._variables = variables
            self._version = version
