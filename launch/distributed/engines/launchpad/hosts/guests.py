"""The other hosts of a run, as the host of its core sees them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .....errors import RunError
from ....deployment import Say
from ....hosts import CORE, Hosts, place
from ....listener import Listener
from ....supervision import heartbeat
from ....supervision.role import Settings
from ....supervision.supervisor import RoleError
from ..launcher import Post
from .channel import Channel

_HELLO_SECONDS = 5.0
_SILENT_SECONDS = 10.0
_TOLD_SECONDS = 3.0
"""A host that is back sooner is not talked about: it only called anew."""
_COME_SECONDS = 60.0
"""Within this a host of the learner must be there, and one that acts at the beginning."""
_IDLE_SECONDS = 300.0
"""How long a run may go on without any host that acts."""


@dataclasses.dataclass
class _Guest:
    """One of them."""

    name: str
    roles: list[str] = dataclasses.field(default_factory=list)
    """All that are there."""
    ranks: list[str] = dataclasses.field(default_factory=list)
    """Of these, processes of the learner, which this host supervises."""
    channel: Channel | None = None
    instance: str = ""
    """Which process of that host it was."""
    came: bool = False
    lost_at: float = 0.0
    """Since when it is not there."""
    is_missed: bool = False
    """Whether that was told."""
    starting: list[str] = dataclasses.field(default_factory=list)
    orders: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """Incarnations of the learner's processes that it is to have, by number."""


class GuestHandle:
    """One incarnation of a role on another host; what is not heard of it its signs of life tell."""

    pid: int | None = None

    def __init__(self, guests: Guests, number: int):
        self.exit_code: int | None = None
        self.ended_at = 0.0
        self.killed = self.final = False
        self._guests, self._number = guests, number
        self._reason = ""

    @property
    def running(self) -> bool:
        return self.exit_code is None

    def terminate(self) -> None:
        self._guests.order(self._number, "terminate")

    def kill(self) -> None:
        """Ends it; a host that does not hear it now does so when it is back."""
        self.killed = True
        self._guests.order(self._number, "kill")
        self.end(-signal.SIGKILL, "killed")

    def reason(self) -> str:
        return self._reason

    def end(self, status: int, reason: str, final: bool = False) -> None:
        """Takes note of its end."""
        if self.exit_code is None:
            self.exit_code, self.ended_at = status, time.monotonic()
            self._reason, self.final = reason, final


class Guests:
    """Hears hosts that come, go and come back; never waits for one."""

    def __init__(
        self,
        hosts: Hosts,
        listener: Listener,
        facts: Mapping[str, Any],
        welcome: Mapping[str, Any],
        posts: Sequence[Post],
        board: heartbeat.Board,
        say: Say,
    ):
        """Nobody is heard before the first `poll`.

        Args:
          hosts: of the run; this is that of the core.
          listener: where the others call.
          facts: of this host, which must be those of all (see `difference`).
          welcome: what a host is told that has come.
          posts: all roles.
          board: takes the signs of life of the learner's processes there.
          say: told what happens, a line at a time.
        """
        self._hosts, self._entrance, self._say = hosts, listener, say
        self._facts, self._welcome = facts, welcome
        self._rows = {post.name: post.row for post in posts}
        self._board = board
        self._numbers = itertools.count()
        self._handles: dict[int, tuple[_Guest, GuestHandle]] = {}
        self._callers: list[tuple[str, Channel]] = []
        self._failed: RoleError | None = None
        self._has_ended = False
        self._guests = [_Guest(name, lost_at=time.monotonic()) for name in hosts.names]
        for post in posts:
            guest = self._guests[place(post.label, post.index, len(hosts.names))]
            guest.roles.append(post.name)
            if post.settings.gang:
                guest.ranks.append(post.name)
        self._others = self._guests[CORE + 1 :]

    def start(self, post: Post, settings: Settings) -> GuestHandle:
        """Has a process of the learner started on its host, now or as soon as that is there."""
        number = next(self._numbers)
        guest = self._guests[place(post.label, post.index, len(self._hosts.names))]
        handle = GuestHandle(self, number)
        self._handles[number] = guest, handle
        self._board.clear(post.row)
        # What it is to have beyond the settings that its host knows: where its gang meets.
        more = settings.environment[len(post.settings.environment) :]
        guest.orders[number] = {"name": post.name, "environment": more}
        if guest.channel is not None:
            guest.channel.send(start=number, **guest.orders[number])
        return handle

    def order(self, number: int, what: str) -> None:
        """Has an incarnation ended: what is "terminate" or "kill"."""
        guest, _ = self._handles[number]
        if what == "kill":
            guest.orders.pop(number, None)
        if guest.channel is not None:
            guest.channel.send(**{what: number})

    def poll(self) -> None:
        """Hears what has come. Call it several times a second."""
        for name, connection in self._entrance.wait(0.0):
            self._callers.append((name, Channel(connection)))
        for caller in list(self._callers):
            self._meet(*caller)
        now = time.monotonic()
        for guest in self._others:
            if guest.channel is not None:
                messages = guest.channel.receive()
                for message in messages or ():
                    self._take(guest, guest.channel, message)
                if messages is None or guest.channel.silence > _SILENT_SECONDS:
                    self._lose(guest)
            elif guest.came and not guest.is_missed and now - guest.lost_at > _TOLD_SECONDS:
                guest.is_missed = True
                if not self._has_ended:
                    self._say(
                        f"{guest.name} is lost, with {', '.join(guest.roles)}; it may come back"
                    )

    def check(self) -> None:
        """Whether the run can go on.

        Raises:
          RoleError: if a role of another host failed and is not started again.
          RunError: if a host is missing for too long.
        """
        if self._failed is not None:
            raise self._failed
        now = time.monotonic()
        gone = [guest for guest in self._others if guest.channel is None]
        for guest in gone:
            if guest.ranks and now - guest.lost_at > _COME_SECONDS:
                self._give_up([guest], _COME_SECONDS)
        came = any(guest.came for guest in self._others)
        patience = _IDLE_SECONDS if came else _COME_SECONDS
        lost_at = max((guest.lost_at for guest in gone), default=now)
        if len(gone) == len(self._others) and now - lost_at > patience:
            self._give_up(gone, patience)

    def _give_up(self, gone: Sequence[_Guest], seconds: float) -> None:
        names = ", ".join(guest.name for guest in gone)
        which = "has" if len(gone) == 1 else "have"
        raise RunError(
            f"{names} {which} not come within {seconds:g} s; begin the same there, with a folder "
            "that all hosts see, and go on from the newest checkpoint with `troupe resume`."
        )

    def starting(self) -> list[str]:
        """Names of the roles there that are not at work yet, but for those of the learner."""
        return [
            name
            for guest in self._others
            for name in (guest.roles if guest.channel is None else guest.starting)
            if name not in guest.ranks
        ]

    def end(self, reason: str) -> None:
        """Tells all that the run has ended; a reason is that of a failure."""
        self._has_ended = True
        for guest in self._others:
            if guest.channel is not None:
                guest.channel.send(end=reason)

    def wait(self, seconds: float) -> None:
        """Waits until all have left, at most so long."""
        deadline = time.monotonic() + seconds
        while any(g.channel is not None for g in self._others) and time.monotonic() < deadline:
            self.poll()
            time.sleep(0.02)
        left = [guest.channel for guest in self._others if guest.channel is not None]
        for channel in [*left, *(one for _, one in self._callers)]:
            channel.close()

    def _meet(self, name: str, channel: Channel) -> None:
        """Hears a caller out that has the token, and takes it in or says why not."""
        messages = channel.receive()
        if messages == [] and channel.silence < _HELLO_SECONDS:
            return
        self._callers.remove((name, channel))
        hello = messages[0].get("hello") if messages else None
        known = name.isdecimal() and CORE < int(name) < len(self._guests)
        if not known or not isinstance(hello, dict):
            channel.close()
            return
        guest = self._guests[int(name)]
        core = self._hosts.names[CORE]
        wrong = difference(self._facts, hello["facts"], core, guest.name)
        if guest.channel is not None and guest.instance != hello["instance"]:
            wrong = wrong or f"{guest.name} takes part in this run already"
        if wrong is not None:
            channel.send(refused=wrong)
            channel.close()
            return
        if guest.channel is not None:
            guest.channel.close()
        if guest.is_missed:
            self._say(f"{guest.name} is back")
        guest.channel, guest.instance = channel, hello["instance"]
        guest.came, guest.is_missed = True, False
        guest.starting = list(guest.roles)
        channel.send(welcome=self._welcome, live=list(guest.orders.items()))

    def _take(self, guest: _Guest, channel: Channel, message: Mapping[str, Any]) -> None:
        if "signs" in message:
            guest.starting = message["starting"]
            for name, (alive, loop) in message["signs"].items():
                self._board.put(self._rows[name], alive, loop)
            channel.send(here=True)
        elif "said" in message:
            self._say(f"{guest.name}: {message['said']}")
        elif "ended" in message:
            guest.orders.pop(message["ended"], None)
            _, handle = self._handles[message["ended"]]
            handle.end(message["status"], message["reason"], message["final"])
        elif "failed" in message:
            name, reason = message["failed"]
            self._failed = RoleError(name, reason)

    def _lose(self, guest: _Guest) -> None:
        assert guest.channel is not None
        guest.channel.close()
        guest.channel, guest.lost_at = None, time.monotonic()


def difference(ours: Any, theirs: Any, us: str, them: str, what: str = "") -> str | None:
    """What two hosts do not agree on, as a line that names it; None: they do.

    Args:
      ours, theirs: values that JSON can hold.
      us, them: names of the hosts.
      what: path of the values in the facts.
    """
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted({*ours, *theirs}):
            path = f"{what}.{key}" if what else key
            found = difference(ours.get(key), theirs.get(key), us, them, path)
            if found is not None:
                return found
        return None
    if ours == theirs:
        return None
    return f"{what} is {json.dumps(theirs)} on {them} and {json.dumps(ours)} on {us}"
