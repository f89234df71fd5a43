"""A deployment: as one value all that an engine needs to start the roles of a run."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ..roles import Roles

if TYPE_CHECKING:
    from ...agents.replay.items import ReplaySpec
    from ..experiment import Experiment
    from ..files.checkpoints import Checkpoint
    from .supervision.role import Settings

Say = Callable[[str], None]
Proxy = Literal["calls", "board", "replay"]
"""The proxy that a role has of another: a `Remote`, a `VariableBoard` or a `ReplayService`."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """Stands for another role in the arguments of one; an engine puts the proxy in its place."""

    label: str
    proxy: Proxy = "calls"
    index: int = 0
    """Among the roles of its label."""


@dataclasses.dataclass(frozen=True)
class RolePlan:
    """One role: `constructor(**arguments)` is made anew in each of its incarnations, and run."""

    label: str
    """The kind of role: "actor". Its name is that, with its index where there are several."""
    constructor: Callable[..., Any]
    arguments: Mapping[str, Any]
    """Of the constructor; `References` may lie in dicts, lists and tuples."""
    settings: Settings
    """The settings of its supervision."""
    threads: int = 0
    """Calls that are answered at the same time; 0: it is no `Service`."""
    serves_replay: bool = False
    """True of the replay: its argument `service` is then that of itself."""

    def plural(self, count: int) -> str:
        """Its label, for so many of them."""
        return self.label + ("s" if count > 1 and self.label != "variables" else "")

    def references(self) -> Iterator[Reference]:
        """All in the arguments."""
        waiting = list(self.arguments.values())
        while waiting:
            one = waiting.pop(0)
            if isinstance(one, Reference):
                yield one
            elif isinstance(one, Mapping):
                waiting.extend(one.values())
            elif isinstance(one, list | tuple):
                waiting.extend(one)


@dataclasses.dataclass(frozen=True)
class Deployment:
    """An experiment as roles, before any engine has to do with it (see `deploy`)."""

    experiment: Experiment
    directory: pathlib.Path
    """Of the run."""
    roles: Roles
    """The numbers from which it was made."""
    plans: tuple[RolePlan, ...]
    """Every role; those that others refer to come first."""
    replay_spec: ReplaySpec
    """The replay that the agent asks for."""
    remarks: tuple[str, ...] = ()
    """On the environment, for users."""
    resume: bool = False
    """True if it goes on with an earlier run."""
    resumed: Checkpoint | None = None
    """From this; None: that run died before its first."""

    def groups(self) -> dict[str, list[RolePlan]]:
        """The roles by label, in their order."""
        found: dict[str, list[RolePlan]] = {}
        for plan in self.plans:
            found.setdefault(plan.label, []).append(plan)
        return found

    def going_on(self, counters: Mapping[str, Any]) -> Deployment:
        """The same, whose counter begins with those of a checkpoint."""
        state = {"state": dict(counters)}
        plans = (
            dataclasses.replace(plan, arguments={**plan.arguments, **state})
            if plan.label == "counter"
            else plan
            for plan in self.plans
        )
        return dataclasses.replace(self, plans=tuple(plans))

    def edges(self) -> list[tuple[str, str]]:
        """Pairs (caller, called) of labels, each once."""
        pairs = ((plan.label, one.label) for plan in self.plans for one in plan.references())
        return list(dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]))
