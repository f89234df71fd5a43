"""Starts the nodes of a Launchpad program under a supervisor, as processes or as threads."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import launchpad as lp
from launchpad import context
from launchpad.launch import serialization

from ....errors import RequestError
from ... import addresses
from ...deployment import Say
from ...gang.rendezvous import Rendezvous
from ...supervision import heartbeat
from ...supervision.role import Settings
from ...supervision.supervisor import Handle, Member, Supervisor
from .processes import ProcessHandle, ProcessLauncher
from .threads import ThreadLauncher

_KINDS = ("threads", "processes")


class HostAddress(lp.AbstractAddressBuilder):
    """A port of a host."""

    def __init__(self, host: str, port: int):
        self._host, self._port = host, port

    def build(self) -> str:
        return f"{self._host}:{self._port}"


def check(program: lp.Program, kind: str) -> None:
    """Raises RequestError where a program cannot be launched so."""
    if kind not in _KINDS:
        raise RequestError(
            f"a program cannot be launched as {kind!r}; choose {' or '.join(_KINDS)}."
        )
    settings = [getattr(node, "role_settings", None) for node in program.get_all_nodes()]
    gang = [one.gang for one in settings if one is not None and one.gang]
    if gang and kind != "processes":
        raise RequestError(
            f"a {gang[0]} of {len(gang)} hosts needs --launch processes: jax joins processes, and "
            f"{kind} are none. Launch as processes, or leave out --learner-hosts."
        )


@dataclasses.dataclass(frozen=True)
class Post:
    """What it takes to start the role of a node, and start it again."""

    name: str
    label: str
    node: Any
    payload: pathlib.Path
    """File of the functions of its label."""
    index: int
    """Among these."""
    row: int
    """Of its signs of life."""
    settings: Settings


Begin = Callable[[Post, Settings], Handle]
"""Starts a role in one of its incarnations."""


def start(
    program: lp.Program,
    kind: str,
    workspace: pathlib.Path,
    logs: pathlib.Path,
    say: Say = lambda line: None,
    address: str = addresses.LOOPBACK,
) -> Supervisor:
    """Prepares a program; its roles start with the supervisor's first `poll`.

    Any Launchpad program will do. A node may carry `role_settings`; one that does not is
    started again after a failure, and may use Reverb.

    Args:
      program: its nodes' functions must be picklable where they become processes.
      kind: "threads" or "processes".
      workspace: an empty folder for this launch.
      logs: folder of the roles' log files.
      say: told what happens, a line at a time.
      address: where the roles' servers listen, an IPv4 address of this machine. Servers that are
        threads listen there only within `servers.kept_to`.
    """
    check(program, kind)
    bind(program, kind, address, addresses.free_ports(num_ports(program), address))
    board = heartbeat.Board(workspace / heartbeat.FILE, len(program.get_all_nodes()))
    if kind == "threads":
        threads = ThreadLauncher(workspace, logs, board)
        functions = [post.node.function for post in posts(program, workspace)]
        found = members(
            posts(program, workspace),
            lambda post, settings: threads.start(
                post.name, functions[post.row], post.row, settings
            ),
        )
        return Supervisor(threads, board, found, say)
    processes = ProcessLauncher(workspace, logs, board, address)
    serialize(program, workspace)
    found = members(posts(program, workspace), functools.partial(start_process, processes))
    return Supervisor(processes, board, found, say)


def posts(program: lp.Program, workspace: pathlib.Path) -> list[Post]:
    """Those of all nodes, in the order of starting."""
    numbers = itertools.count()
    return [
        Post(
            f"{label}/{index}" if len(nodes) > 1 else label,
            label,
            node,
            workspace / f"{label}.pkl",
            index,
            next(numbers),
            getattr(node, "role_settings", Settings(reverb=True)),
        )
        for label, nodes in program.groups.items()
        for index, node in enumerate(nodes)
    ]


def serialize(program: lp.Program, workspace: pathlib.Path) -> None:
    """Writes the payloads of a program that is bound, from which processes take their functions."""
    for label, nodes in program.groups.items():
        functions = [node.function for node in nodes]
        serialization.serialize_functions(str(workspace / f"{label}.pkl"), label, functions)


def start_process(launcher: ProcessLauncher, post: Post, settings: Settings) -> ProcessHandle:
    """Starts a role as a process of this machine."""
    return launcher.start(post.name, post.payload, post.index, post.row, settings)


def members(
    posts: Iterable[Post], begin: Begin, meeting: Callable[[], Rendezvous] = Rendezvous
) -> list[Member]:
    """What a supervisor takes.

    Args:
      posts: of the roles.
      begin: starts one; of a gang with where it meets in its settings.
      meeting: makes that of one gang.
    """
    meetings: dict[str, Rendezvous] = {}
    found = []
    for post in posts:
        starts = functools.partial(begin, post, post.settings)
        if gang := post.settings.gang:
            first = gang not in meetings
            place = meetings.setdefault(gang, meeting())
            starts = functools.partial(_begin_in_gang, begin, post, place, first)
        found.append(Member(post.name, post.row, post.settings, starts))
    return found


def _begin_in_gang(begin: Begin, post: Post, meeting: Rendezvous, first: bool) -> Handle:
    return begin(post, meeting.settings(post.settings, first))


def num_ports(program: lp.Program) -> int:
    """How many the nodes listen on."""
    return len(_addresses(program))


def bind(program: lp.Program, kind: str, host: str, ports: Sequence[int]) -> None:
    """Tells the nodes where they and the others will be: at these ports of a host."""
    launch_type = (
        context.LaunchType.LOCAL_MULTI_PROCESSING
        if kind == "processes"
        else context.LaunchType.LOCAL_MULTI_THREADING
    )
    for label, nodes in program.groups.items():
        for node in nodes:
            node._initialize_context(launch_type, launch_config=None)
            for handle in node.input_handles:
                handle.connect(node, label)
    for address, port in zip(_addresses(program), ports, strict=True):
        address.bind(HostAddress(host, port))


def _addresses(program: lp.Program) -> list[lp.Address]:
    """Those of all nodes, each once, in their order."""
    found = {id(a): a for node in program.get_all_nodes() for a in node.addresses}
    return list(found.values())
