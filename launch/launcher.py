"""Starts the nodes of a Launchpad program under a supervisor, as processes or as threads."""

from __future__ import annotations

import functools
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import launchpad as lp
from launchpad import context
from launchpad.launch import serialization

from .errors import RequestError
from .roles import KINDS
from .supervision import loopback, pulse
from .supervision.processes import ProcessLauncher
from .supervision.role import Settings
from .supervision.supervisor import Member, Supervisor
from .supervision.threads import ThreadLauncher

Say = Callable[[str], None]


class LoopbackAddress(lp.AbstractAddressBuilder):
    """A port of 127.0.0.1."""

    def __init__(self, port: int):
        self._port = port

    def build(self) -> str:
        return f"127.0.0.1:{self._port}"


def check_kind(kind: str) -> None:
    """Raises RequestError for a kind of launch that there is none of."""
    if kind not in KINDS:
        raise RequestError(
            f"a program cannot be launched as {kind!r}; choose {' or '.join(KINDS)}."
        )


def start(
    program: lp.Program,
    kind: str,
    workspace: pathlib.Path,
    logs: pathlib.Path,
    say: Say = lambda line: None,
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
    """
    check_kind(kind)
    _bind(program, kind)
    rows = sum(len(nodes) for nodes in program.groups.values())
    board = pulse.Board(workspace / pulse.FILE, rows)
    launcher: Any = (ProcessLauncher if kind == "processes" else ThreadLauncher)(
        workspace, logs, board
    )
    numbers = itertools.count()
    members = []
    for label, nodes in program.groups.items():
        functions = [node.function for node in nodes]
        payload = workspace / f"{label}.pkl"
        if kind == "processes":
            serialization.serialize_functions(str(payload), label, functions)
        for index, (node, function) in enumerate(zip(nodes, functions, strict=True)):
            name = f"{label}/{index}" if len(nodes) > 1 else label
            settings = getattr(node, "role_settings", Settings(reverb=True))
            row = next(numbers)
            if kind == "processes":
                begin = functools.partial(launcher.start, name, payload, index, row, settings)
            else:
                begin = functools.partial(launcher.start, name, function, row, settings)
            members.append(Member(name, row, settings, begin))
    return Supervisor(launcher, board, members, say)


def _bind(program: lp.Program, kind: str) -> None:
    """Tells the nodes where they and the others will be."""
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
    addresses = {id(a): a for node in program.get_all_nodes() for a in node.addresses}
    ports = loopback.free_ports(len(addresses))
    for address, port in zip(addresses.values(), ports, strict=True):
        address.bind(LoopbackAddress(port))
