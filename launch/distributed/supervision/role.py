"""Facts that a role knows of itself while it runs: its name, and whether it is to stop."""

from __future__ import annotations

import dataclasses
import pathlib
import threading

from . import heartbeat


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings by which roles of one label are supervised. A node carries it as `role_settings`."""

    restart: bool = True
    """Started again after a failure; if not, its failure ends the run."""
    max_restarts: int = 3
    """Failures of its own (errors, and loops that hang) that are put up with within `window`."""
    max_losses: int = 10
    """Likewise, where its process was killed or stopped from outside."""
    window: float = 60.0
    """Seconds."""
    hang_seconds: float = 60.0
    """Seconds for which its loop may give no sign of life, once it has given one."""
    start_seconds: float = 120.0
    """Seconds that it may take to its loop's first sign."""
    stopped_seconds: float = 10.0
    """Seconds for which its process may give no sign of life."""
    reverb: bool = False
    """True if it needs Reverb, and so TensorFlow; all others never import it."""
    accelerator: bool = False
    """True if it may see the accelerator; all others are held to the CPU."""
    environment: tuple[tuple[str, str], ...] = ()
    """Further environment variables of its process."""
    gang: str = ""
    """Roles of one gang are one: when one fails, all of them are ended and started again."""


@dataclasses.dataclass(frozen=True)
class Role:
    """A running role."""

    name: str
    """Label and index, as "actor/3"."""
    stop: threading.Event
    """Set when it is to end."""
    workspace: pathlib.Path = pathlib.Path()
    """A folder that all roles of this launch share, gone when it ends; in memory where possible."""
    incarnation: int | None = None
    """Of the run, where it can go on elsewhere (`Store.begin_incarnation`)."""
    start: int = 0
    """The number of its processes that were started before. They need not have ended: a node may be
    cut off."""


_current = threading.local()


def enter(role: Role) -> None:
    """Makes `role` the current one of this thread."""
    _current.role = role


def current() -> Role:
    """The role that this thread runs; outside of any launch, one without a name."""
    role = getattr(_current, "role", None)
    if role is None:
        role = _current.role = Role("", threading.Event())
    return role


def pause(seconds: float) -> bool:
    """Gives a sign of life, waits, and says whether the role is to stop."""
    heartbeat.beat()
    return current().stop.wait(seconds)
