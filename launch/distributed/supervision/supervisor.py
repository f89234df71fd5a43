"""Keeps the roles of a program running, or ends it saying why."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ...errors import RunError
from . import heartbeat
from .role import Settings

_FIRST_BACK_OFF, _LONGEST_BACK_OFF = 0.25, 8.0
_SILENT_SECONDS = 2.0
"""Silence of one role that explains the end of others of its gang."""


class Handle(Protocol):
    """One incarnation of a role."""

    pid: int | None
    exit_code: int | None
    ended_at: float
    killed: bool

    @property
    def running(self) -> bool: ...

    @property
    def final(self) -> bool: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def reason(self) -> str: ...


class RoleError(RunError):
    """A role failed and was not, or no longer, started again."""

    def __init__(self, name: str, reason: str):
        super().__init__(f"{name} failed: {reason}")
        self.role = name


@dataclasses.dataclass
class Member:
    """A role over all its incarnations."""

    name: str
    row: int
    """Of its signs of life."""
    settings: Settings
    start: Callable[[], Handle]
    handle: Handle | None = None
    began: float = 0.0
    failures: collections.deque[float] = dataclasses.field(default_factory=collections.deque)
    """Times of those within the window."""
    start_at: float = 0.0
    """When it is to be started (again), where it does not run."""
    finished: bool = False
    """It ended by itself, without a failure."""


class Supervisor:
    """Starts roles, notices those that died or hang, and starts them again.

    Times are those of `time.monotonic`.
    """

    def __init__(
        self,
        launcher: Any,
        board: heartbeat.Board,
        members: Sequence[Member],
        say: Callable[[str], None] = lambda line: None,
    ):
        """Nothing is started before the first `poll`.

        Args:
          launcher: a `ProcessLauncher` or `ThreadLauncher`, which made the members' `start`.
          board: where the members' signs of life are read.
          members: in the order of starting.
          say: told what happens, a line at a time.
        """
        self._launcher, self._board, self._say = launcher, board, say
        self.members = list(members)
        gangs: dict[str, collections.deque[float]] = {}
        for member in self.members:
            if member.settings.gang:  # Its failures are those of all its members.
                member.failures = gangs.setdefault(member.settings.gang, member.failures)
        launcher.warm([member.settings for member in self.members])

    def poll(self) -> None:
        """Looks after every role once. Call it a few times a second.

        Raises:
          RoleError: if a role failed that is not started again.
        """
        self._launcher.poll()
        now = time.monotonic()
        for member in self.members:
            if member.finished:
                continue
            if member.handle is None:
                if now >= member.start_at:
                    member.handle, member.began = member.start(), now
            elif not member.handle.running:
                if member.handle.exit_code == 0:
                    member.finished = True
                else:
                    self._ended(member, now)
            else:
                silence = self._silence(member, now)
                if silence:
                    member.handle.kill()
                    if not self._launcher.kills:
                        raise RoleError(member.name, f"{silence}; a thread cannot be restarted")
                    self._failed(member, silence, now, lost=silence.startswith("no sign"))

    def starting(self) -> list[str]:
        """Names of the roles that have given no sign of their work yet."""
        rows = ((member, self._board.read(member.row)) for member in self.members)
        return [member.name for member, times in rows if 0.0 in times and not member.finished]

    def stop(self, patience: float = 5.0) -> None:
        """Asks every role to end, the last started first, and ends those that do not."""
        handles = [m.handle for m in reversed(self.members) if m.handle and m.handle.running]
        for handle in handles:
            handle.terminate()
        deadline = time.monotonic() + patience
        while any(handle.running for handle in handles) and time.monotonic() < deadline:
            self._launcher.poll()
            time.sleep(0.02)
        for handle in handles:
            if handle.running:
                handle.kill()
        deadline = time.monotonic() + 2.0
        while any(handle.running for handle in handles) and time.monotonic() < deadline:
            self._launcher.poll()
            time.sleep(0.02)
        self._launcher.close()

    def _silence(self, member: Member, now: float) -> str | None:
        """Returns what is wrong with a role that runs, as far as its signs of life tell."""
        settings = member.settings
        alive, loop = self._board.read(member.row)
        if alive == 0.0 or loop == 0.0:
            if now - member.began > settings.start_seconds:
                return f"not at work {settings.start_seconds:g} s after its start"
        elif now - loop > settings.hang_seconds:
            return f"hangs: no step for {settings.hang_seconds:g} s"
        if alive and now - alive > settings.stopped_seconds:
            return f"no sign of life for {settings.stopped_seconds:g} s"
        return None

    def _gang(self, member: Member) -> list[Member]:
        """Those that are started again with a role: itself, and the others of its gang."""
        gang = member.settings.gang
        return [m for m in self.members if m is member or (gang and m.settings.gang == gang)]

    def _ended(self, member: Member, now: float) -> None:
        """Takes note of a role that ended with a failure, or of whom in its gang it failed for."""
        ended: list[tuple[float, Member, Handle]] = []
        for one in self._gang(member):
            if one.handle is None:
                continue
            silence = now - (self._board.read(one.row)[0] or now)
            if one.handle.running and silence > _SILENT_SECONDS:
                self._failed(one, f"no sign of life for {silence:.0f} s", now, lost=True)
                return
            if one.handle.exit_code:
                ended.append((one.handle.ended_at, one, one.handle))
        _, first, handle = min(ended, key=lambda end: end[0])
        if handle.final:
            raise RoleError(first.name, handle.reason())
        lost = handle.exit_code is not None and handle.exit_code < 0
        self._failed(first, handle.reason(), now, lost=lost)

    def _failed(self, member: Member, reason: str, now: float, *, lost: bool) -> None:
        settings, failures, gang = member.settings, member.failures, self._gang(member)
        failures.append(now)
        while failures[0] < now - settings.window:
            failures.popleft()
        for one in gang:
            if one.handle is not None and one.handle.running:
                one.handle.kill()
            one.handle, one.finished = None, False
        if not settings.restart:
            raise RoleError(member.name, reason)
        if len(failures) > (settings.max_losses if lost else settings.max_restarts):
            raise RoleError(
                member.name, f"{reason} (failure {len(failures)} within {settings.window:g} s)"
            )
        wait = min(_FIRST_BACK_OFF * 2 ** (len(failures) - 1), _LONGEST_BACK_OFF)
        for one in gang:
            one.start_at = now + wait
        whole = "it is" if len(gang) == 1 else f"the {len(gang)} of its gang are"
        self._say(f"{member.name} failed: {reason}; {whole} started again in {wait:g} s")
