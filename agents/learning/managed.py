"""Learners as a run asks for them: what acme's and others lack is added here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..interfaces import ManagedLearner, Nest

_REQUIRED = ("step", "get_variables", "save", "restore")


def managed(learner: Any, steps_per_dispatch: int = 1) -> ManagedLearner:
    """A learner with all that a run asks of it.

    Args:
      learner: one that has all of it is returned as it is; of any other, such as acme's, what
        it lacks is added as the documentation of `ManagedLearner` says.
      steps_per_dispatch: gradient steps of one `step`, where the learner does not count.

    Raises:
      TypeError: if it is no learner.
    """
    missing = [name for name in _REQUIRED if not callable(getattr(learner, name, None))]
    if missing:
        raise TypeError(
            f"a learner must have {', '.join(_REQUIRED)}; the builder's make_learner gave a "
            f"{type(learner).__name__} without {', '.join(missing)}."
        )
    if isinstance(learner, ManagedLearner):
        return learner
    return _Managed(learner, steps_per_dispatch)


class _Managed:
    """Adds to a learner what it lacks. Here is the one place of every default."""

    def __init__(self, learner: Any, steps_per_dispatch: int):
        self._learner, self._steps_per_dispatch = learner, steps_per_dispatch
        self._counts = not hasattr(learner, "steps")
        self._own_steps = self._own_version = 0

    @property
    def steps(self) -> int:
        return self._own_steps if self._counts else self._learner.steps

    @property
    def version(self) -> int:
        return getattr(self._learner, "version", self._own_version)

    @property
    def variable_names(self) -> tuple[str, ...]:
        return tuple(getattr(self._learner, "variable_names", ("policy",)))

    @property
    def saved_shapes(self) -> Nest:
        shapes = getattr(self._learner, "saved_shapes", None)
        return self.save() if shapes is None else self._counted(shapes)

    def metrics(self) -> Mapping[str, float]:
        metrics = getattr(self._learner, "metrics", None)
        return {} if metrics is None else metrics()

    def remarks(self, metrics: Mapping[str, float]) -> Mapping[str, str]:
        remarks = getattr(self._learner, "remarks", None)
        return {} if remarks is None else remarks(metrics)

    def step(self) -> None:
        self._learner.step()
        self._own_steps += self._steps_per_dispatch
        self._own_version += 1

    def run(self, num_steps: int | None = None) -> None:
        done = 0
        while num_steps is None or done < num_steps:
            self.step()
            done += 1

    def get_variables(self, names: Sequence[str]) -> list[Nest]:
        return self._learner.get_variables(names)

    def assist(self, names: Sequence[str]) -> None:
        getattr(self._learner, "assist", self._learner.get_variables)(names)

    def save(self) -> Nest:
        return self._counted(self._learner.save())

    def live_state(self) -> Nest:
        return self._counted(getattr(self._learner, "live_state", self._learner.save)())

    def restore(self, state: Nest) -> None:
        if self._counts:
            self._own_steps, state = int(state["steps"]), state["state"]
        self._learner.restore(state)
        self._own_version += 1

    def _counted(self, state: Nest) -> Nest:
        """With the count of steps, where the learner keeps none."""
        return {"steps": np.int64(self._own_steps), "state": state} if self._counts else state
