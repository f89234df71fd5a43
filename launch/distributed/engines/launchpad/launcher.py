"""Starts the nodes of a Launchpad program under a supervisor, as processes or as threads."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable
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
from .processes import ProcessLauncher
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
    _bind(program, kind, address)
    board = heartbeat.Board(workspace / heartbeat.FILE, len(program.get_all_nodes()))
    launcher: Any  # Each takes other facts of a role.
    if kind == "processes":
        launcher = ProcessLauncher(workspace, logs, board, address)
    else:
        launcher = ThreadLauncher(workspace, logs, board)
    members: list[Member] = []
    meetings: dict[str, Rendezvous] = {}
    for label, nodes in program.groups.items():
        functions = [node.function for node in nodes]
        payload = workspace / f"{label}.pkl"
        if kind == "processes":
            serialization.serialize_functions(str(payload), label, functions)
        for index, (node, function) in enumerate(zip(nodes, functions, strict=True)):
            name, row = f"{label}/{index}" if len(nodes) > 1 else label, len(members)
            settings = getattr(node, "role_settings", Settings(reverb=True))
            role = (name, payload, index) if kind == "processes" else (name, function)
            begin = functools.partial(launcher.start, *role, row)
            starts = functools.partial(begin, settings)
            if gang := settings.gang:
                first = gang not in meetings
                meeting = meetings.setdefault(gang, Rendezvous())
                starts = functools.partial(_start_in_gang, begin, settings, meeting, first)
            members.append(Member(name, row, settings, starts))
    return Supervisor(launcher, board, members, say)


def _start_in_gang(
    begin: Callable[[Settings], Handle], settings: Settings, meeting: Rendezvous, first: bool
) -> Handle:
    return begin(meeting.settings(settings, first))


def _bind(program: lp.Program, kind: str, host: str) -> None:
    """Tells the nodes where they and the others will be: at free ports of a host."""
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
    found = {id(a): a for node in program.get_all_nodes() for a in node.addresses}
    ports = addresses.free_ports(len(found), host)
    for address, port in zip(found.values(), ports, strict=True):
        address.bind(HostAddress(host, port))
