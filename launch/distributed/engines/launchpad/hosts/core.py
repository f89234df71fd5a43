"""The host of the core: it has the run, and all roles that others call."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .... import addresses
from ....deployment import Say
from ....gang.rendezvous import Rendezvous
from ....hosts import CORE, Hosts, place
from ....listener import Listener
from ....roles.rpc import Remote
from ....supervision import heartbeat
from ....supervision.role import Settings
from ....supervision.supervisor import Handle, Supervisor
from .. import launcher
from ..processes import ProcessLauncher
from ..program import LaunchProgram
from .channel import MeetingPlace
from .guests import Guests

_LEAVE_SECONDS = 10.0


class RunningCore(NamedTuple):
    """`Running`, where the roles of other hosts have supervisors of their own."""

    counter: Remote
    supervisor: Supervisor
    """Of the roles here, and of all processes of the learner."""
    guests: Guests

    def poll(self) -> None:
        self.guests.check()
        self.supervisor.poll()

    def starting(self) -> list[str]:
        return [*self.supervisor.starting(), *self.guests.starting()]

    def went_back(self) -> None:
        """Roles are started again one by one."""


class _Launcher:
    """Starts roles here, and has those of a learner started on their hosts."""

    kills = True

    def __init__(self, here: ProcessLauncher, guests: Guests, hosts: Hosts):
        self._here, self._guests, self._hosts = here, guests, hosts

    def warm(self, settings: Sequence[Settings]) -> None:
        self._here.warm(settings)

    def start(self, post: launcher.Post, settings: Settings) -> Handle:
        if place(post.label, post.index, len(self._hosts.names)) == CORE:
            return launcher.start_process(self._here, post, settings)
        return self._guests.start(post, settings)

    def poll(self) -> None:
        self._here.poll()
        self._guests.poll()

    def close(self) -> None:
        self._here.close()


class CoreEngine:
    """Runs the roles of a program on this host and on those that come."""

    kind = "processes"

    def __init__(self, program: LaunchProgram, hosts: Hosts, facts: Mapping[str, Any]):
        """Takes what all hosts must have alike as `facts`."""
        launcher.check(program, self.kind)
        self._program, self._hosts, self._facts = program, hosts, facts

    @contextlib.contextmanager
    def start(self, workspace: pathlib.Path, logs: pathlib.Path, say: Say) -> Iterator[RunningCore]:
        """See `run.Engine`."""
        program, hosts, address = self._program, self._hosts, self._hosts.address
        needed = launcher.num_ports(program)
        port, *ports = addresses.free_ports(1 + needed, address)
        meeting_place = MeetingPlace(address, port, secrets.token_hex(32))
        launcher.bind(program, self.kind, address, ports)
        launcher.serialize(program, workspace)
        posts = launcher.posts(program, workspace)
        board = heartbeat.Board(workspace / heartbeat.FILE, len(posts))
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(socket.socket())
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((address, port))
            listener = stack.enter_context(
                contextlib.closing(Listener(server, meeting_place.token))
            )
            welcome = {"ports": ports}
            guests = Guests(hosts, listener, self._facts, welcome, posts, board, say)
            folder = self._program.deployment.directory
            meeting_place.write(folder)
            stack.callback(meeting_place.remove, folder)
            local = ProcessLauncher(workspace, logs, board, address, f"zygote-{hosts.name}.log")
            both = _Launcher(local, guests, hosts)
            stack.callback(guests.wait, _LEAVE_SECONDS)
            mine = [
                post
                for post in posts
                if post.settings.gang or place(post.label, post.index, len(hosts.names)) == CORE
            ]
            meet = functools.partial(Rendezvous, functools.partial(_two_ports, address))
            members = launcher.members(mine, both.start, meet)
            supervisor = Supervisor(both, board, members, say)
            stack.callback(supervisor.stop)
            counter = program.handles["counter"][0].dereference()
            try:
                yield RunningCore(counter, supervisor, guests)
            except BaseException as error:
                guests.end(str(error) or type(error).__name__)
                raise
            guests.end("")


def _two_ports(address: str) -> tuple[str, str]:
    """Where the ranks of a learner meet in one incarnation."""
    first, second = addresses.free_ports(2, address)
    return f"{address}:{first}", f"{address}:{second}"
