"""Any other host: it has actors, a process of the learner where there are several, and no run."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..... import signals
from .....errors import Interrupted, RequestError, RunError
from ....deployment import Say
from ....hosts import CORE, Hosts, place
from ....run import workspace_of
from ....supervision import heartbeat
from ....supervision.supervisor import RoleError, Supervisor
from .. import launcher
from ..processes import ProcessHandle, ProcessLauncher
from ..program import LaunchProgram
from .channel import Channel, MeetingPlace, call

_COME_SECONDS = 60.0
_PATIENCE_SECONDS = 30.0
"""How long the core may say nothing: a cable that is out for less costs nothing."""
_CALL_AGAIN_SECONDS = 3.0
"""Sooner than TCP would try again by itself."""
_CONNECT_SECONDS = 1.0
_SIGN_SECONDS = 0.5
_POLL_SECONDS = 0.05
_STOP_SECONDS = 15.0
_END_SECONDS = 5.0


class _Link:
    """The connection to the core, made again where it breaks."""

    def __init__(self, hosts: Hosts, directory: pathlib.Path, facts: Mapping[str, Any]):
        self._hosts, self._directory = hosts, directory
        self._hello = {"facts": facts, "instance": secrets.token_hex(8)}
        self._place: MeetingPlace | None = None
        self._channel: Channel | None = None
        self._heard_at, self._call_at = time.monotonic(), 0.0

    def join(self, stop: signals.Stop) -> tuple[str, Mapping[str, Any]]:
        """Waits for the core; its address and its welcome.

        Raises:
          RequestError: if it does not answer, or does not take this host.
          Interrupted: if a signal came.
        """
        while not stop.requested:
            if self._place is None or self._channel is None:
                self._place = MeetingPlace.read(self._directory)
            for message in self._hear():
                if "welcome" in message:
                    assert self._place is not None
                    return self._place.address, message
            if time.monotonic() - self._heard_at > _COME_SECONDS:
                raise RequestError(self._missed())
            time.sleep(_POLL_SECONDS)
        raise Interrupted(stop.signal_number or 0, f"{self._hosts.name} has not joined the run.")

    def send(self, **message: Any) -> None:
        if self._channel is not None:
            self._channel.send(**message)

    def poll(self) -> list[Mapping[str, Any]]:
        """What the core has said.

        Raises:
          RunError: if it is gone.
        """
        messages = self._hear()
        if time.monotonic() - self._heard_at > _PATIENCE_SECONDS:
            raise RunError(
                f"the core's host {self._hosts.names[CORE]} has not answered for "
                f"{_PATIENCE_SECONDS:g} s; go on from the newest checkpoint with `troupe resume "
                f"{self._directory}` on all hosts."
            )
        return messages

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def _hear(self) -> list[Mapping[str, Any]]:
        messages = self._channel.receive() if self._channel is not None else None
        if messages:
            self._heard_at = time.monotonic()
            for message in messages:
                if "refused" in message:
                    raise RequestError(f"{message['refused']}; the run goes on without it.")
        lost = self._channel is None or self._channel.silence > _CALL_AGAIN_SECONDS
        if (messages is None or lost) and self._place is not None:
            self._call(self._place)
        return messages or []

    def _call(self, place: MeetingPlace) -> None:
        self.close()
        self._channel = None
        if time.monotonic() < self._call_at:
            return
        self._call_at = time.monotonic() + _CONNECT_SECONDS
        try:
            self._channel = call(place, self._hosts.own, _CONNECT_SECONDS)
        except OSError:
            return
        self._channel.send(hello=self._hello)

    def _missed(self) -> str:
        core = self._hosts.names[CORE]
        if self._place is None:
            return (
                f"{self._hosts.name} sees no run that {core} has begun in {self._directory}, after "
                f"{_COME_SECONDS:g} s; begin the same on {core}, with an --out that all hosts see."
            )
        return (
            f"{core} does not answer at {self._place.address}:{self._place.port}, after "
            f"{_COME_SECONDS:g} s; begin the same there, where {self._hosts.name} can reach it."
        )


class _Ranks:
    """Processes of the learner that the core has this host start and end."""

    def __init__(
        self,
        link: _Link,
        local: ProcessLauncher,
        board: heartbeat.Board,
        posts: Sequence[launcher.Post],
    ):
        self._link, self._local, self._board = link, local, board
        self._seats = {post.name: post for post in posts}
        self._incarnations: dict[int, tuple[str, ProcessHandle]] = {}
        self._ended: dict[int, dict[str, Any]] = {}

    def take(self, message: Mapping[str, Any]) -> None:
        """Does what the core says."""
        if "welcome" in message:
            live = dict(message["live"])
            for number in set(self._incarnations) - set(live):
                self._incarnations.pop(number)[1].kill()
            self._ended = {n: end for n, end in self._ended.items() if n in live}
            for end in self._ended.values():
                self._link.send(**end)
            for number in set(live) - set(self._incarnations) - set(self._ended):
                self._start(number, **live[number])
        elif "start" in message:
            self._start(message["start"], message["name"], message["environment"])
        elif "kill" in message and message["kill"] in self._incarnations:
            self._incarnations.pop(message["kill"])[1].kill()
        elif "terminate" in message and message["terminate"] in self._incarnations:
            self._incarnations[message["terminate"]][1].terminate()

    def poll(self) -> None:
        """Tells the core of those that have ended."""
        for number, (_, handle) in list(self._incarnations.items()):
            if not handle.running:
                del self._incarnations[number]
                end = {"status": handle.exit_code, "reason": handle.reason()}
                self._ended[number] = {"ended": number, **end, "final": handle.final}
                self._link.send(**self._ended[number])

    def signs(self) -> dict[str, list[float | None]]:
        """Seconds since the last signs of each, by name."""
        now, found = time.monotonic(), {}
        for name, _ in self._incarnations.values():
            times = self._board.read(self._seats[name].row)
            found[name] = [now - one if one else None for one in times]
        return found

    def end(self, seconds: float) -> None:
        """Ends all, first by asking."""
        handles = [handle for _, handle in self._incarnations.values()]
        for handle in handles:
            handle.terminate()
        deadline = time.monotonic() + seconds
        while any(handle.running for handle in handles) and time.monotonic() < deadline:
            self._local.poll()
            time.sleep(_POLL_SECONDS)

    def __len__(self) -> int:
        return len(self._incarnations)

    def _start(self, number: int, name: str, environment: list[list[str]]) -> None:
        post = self._seats[name]
        own = (*post.settings.environment, *((key, value) for key, value in environment))
        settings = dataclasses.replace(post.settings, environment=own)
        self._incarnations[number] = name, launcher.start_process(self._local, post, settings)


def take_part(program: LaunchProgram, hosts: Hosts, facts: Mapping[str, Any], say: Say) -> None:
    """Has this host's roles take part in the run of the core until that ends.

    Args:
      program: as the core has made it, from the same experiment.
      hosts: of the run.
      facts: of this host, which must be those of the core's.
      say: told what happens, a line at a time.

    Raises:
      RequestError: if the core does not answer, or has begun something else.
      RunError: if the run has failed, a role of this host is not started again, or the core is
        gone.
      Interrupted: if a signal came.
    """
    deployment = program.deployment
    link = _Link(hosts, deployment.directory, facts)
    try:
        with signals.caught(say=say) as stop:
            core, welcome = link.join(stop)
            with workspace_of(deployment.experiment.builder.name) as workspace:
                launcher.bind(program, "processes", core, welcome["welcome"]["ports"])
                launcher.serialize(program, workspace)
                _Visit(program, hosts, workspace, link, say).until_the_end(welcome, stop)
    finally:
        link.close()


class _Visit:
    """The roles of this host, while it takes part."""

    def __init__(
        self,
        program: LaunchProgram,
        hosts: Hosts,
        workspace: pathlib.Path,
        link: _Link,
        say: Say,
    ):
        posts = launcher.posts(program, workspace)
        board = heartbeat.Board(workspace / heartbeat.FILE, len(posts))
        logs = program.deployment.directory / "logs"
        local = ProcessLauncher(workspace, logs, board, hosts.address, f"zygote-{hosts.name}.log")
        count = len(hosts.names)
        mine = [one for one in posts if place(one.label, one.index, count) == hosts.own]
        alone = [post for post in mine if not post.settings.gang]
        self._hosts, self._link, self._say = hosts, link, say
        self._ranks = _Ranks(link, local, board, [one for one in mine if one.settings.gang])
        begin = functools.partial(launcher.start_process, local)
        self._supervisor = Supervisor(local, board, launcher.members(alone, begin), self._tell)
        roles = ", ".join(post.name for post in mine) or "nothing to do"
        say(f"{hosts.name} takes part in the run of {hosts.names[CORE]}: {roles}")

    def until_the_end(self, welcome: Mapping[str, Any], stop: signals.Stop) -> None:
        """Goes on until the core says that the run has ended."""
        leave_at, sign_at = float("inf"), 0.0
        self._ranks.take(welcome)
        try:
            while True:
                self._supervisor.poll()
                self._ranks.poll()
                for message in self._link.poll():
                    if "end" in message:
                        return self._ended(message["end"])
                    self._ranks.take(message)
                now = time.monotonic()
                if now >= sign_at:
                    sign_at = now + _SIGN_SECONDS
                    starting = self._supervisor.starting()
                    self._link.send(signs=self._ranks.signs(), starting=starting)
                if stop.requested and leave_at == float("inf"):
                    # The core, where it is asked to stop as well, saves with all of the learner.
                    leave_at = now + (_STOP_SECONDS if len(self._ranks) else 0.0)
                if now >= leave_at:
                    raise Interrupted(
                        stop.signal_number or 0, f"{self._hosts.name} has left the run."
                    )
                time.sleep(_POLL_SECONDS)
        except RoleError as error:
            self._link.send(failed=[error.role, str(error).partition(" failed: ")[2]])
            raise
        finally:
            self._ranks.end(_END_SECONDS)
            self._supervisor.stop()

    def _tell(self, line: str) -> None:
        self._say(line)
        self._link.send(said=line)

    def _ended(self, reason: str) -> None:
        if reason:
            raise RunError(f"{self._hosts.names[CORE]} has ended the run: {reason}")
        self._say(f"the run has ended; see {self._hosts.names[CORE]}")
