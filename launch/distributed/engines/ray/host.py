"""The process of a role, as Ray has it: an actor in one of whose threads the role runs.

A role that answers no call, and whose signs of life are seen without asking for them, has the main
thread. Ray's loop, which that thread runs otherwise, looks for signals a hundred times a second:
half a percent of a processor for each role, so that sixteen actors took a tenth of one from the
learner beside them.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ray

from ....files import result
from ... import workspace
from ...roles import rpc
from ...supervision import heartbeat, process
from ...supervision.role import Role, enter
from . import cluster_nodes
from .direct import FAILED, Address, DirectServer

DONE, STARTING, OTHER = "done", "starting", "other"
"""States of a call, besides `FAILED`, which the reason follows: what follows is its value; nobody
answers yet; what follows is the incarnation of the run that this role is of, which is not the
caller's."""
_READY_SECONDS = 1.0
_MOST_SAID = 1 << 16
"""Bytes of a log that are sent at a time; at the end of a role so many times as many."""
_LAST = 16
_current = threading.local()


class BoardRow(NamedTuple):
    """The row of a role on the node of the process that launches, for its signs of life: no call,
    which takes a millisecond of a processor at either end, is then needed to see them."""

    node: str
    """By Ray's id."""
    board: str
    """A file of `heartbeat.Board`."""
    number: int


class Place(NamedTuple):
    """The files and folders that a role writes to."""

    name: str
    run: str
    """Namespace of its actors."""
    incarnation: int
    """Of the run."""
    workspace: str | None
    """A folder of the process that launches, which is on the same node if the role writes there;
    None: the role's node has one, made by the first that asks."""
    log: str
    """A file; where its folder is not seen, the process that launches is sent what is for it."""
    versions: Mapping[str, str]
    """Of the process that launches; those of the role's node must be the same."""
    start: int
    """The number of processes of the role that were started before."""
    row: BoardRow | None
    """None: signs of life are asked for, wherever it is."""


class RoleEnd(NamedTuple):
    """The end of a role that ended by itself."""

    exit_code: int
    reason: str = ""
    final: bool = False
    """True if a new start cannot help."""
    unlike: str | None = None
    """Id of its node, where that has other versions and no role can be."""
    said: bytes = b""
    """The rest of its log, where the file is not seen."""


class Signs(NamedTuple):
    """Signs of life, as of now: seconds since the last one of each kind; None before the first."""

    pid: int
    node: str
    alive: float | None
    loop: float | None
    said: bytes
    """The part of its log since the last time, where the file is not seen."""
    shown: bool
    """True if the other signs, and its log, are where the process that launches sees them: they
    need not be asked for."""


class _Times:
    """A board of one row, in this process."""

    def __init__(self) -> None:
        self.times = [0.0, 0.0]

    def sign(self, index: int, which: int) -> None:
        self.times[which] = time.monotonic()


class _OwnLog:
    """A file of this node with what this process prints, for those who see another folder."""

    def __init__(self, path: pathlib.Path) -> None:
        process.redirect(str(path))
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        self._lock = threading.Lock()

    def take(self, most: int) -> bytes:
        """Returns what came since the last time, at most so many bytes of it."""
        with self._lock:
            return self._file.read(most) or b""


class RoleHost:
    """One incarnation of a role."""

    def __init__(
        self, place: Place, environment: Mapping[str, str | None], path: Sequence[str]
    ) -> None:
        """Prepares the process; no module that reads the environment is loaded before.

        Args:
          place: where the role writes.
          environment: variables of the process; None unsets.
          path: where modules are looked for besides, as in the process that launches.
        """
        self._place, self._times = place, _Times()
        self._stop, self._ready = threading.Event(), threading.Event()
        self._target: Any = None
        self._direct: DirectServer | None = None
        self._opening = threading.Lock()
        self._row = self._find_row()
        sys.path.extend(one for one in path if one not in sys.path)
        process.set_environment(environment)
        self._own_log: _OwnLog | None = None

    def run_alone(self, payload: bytes) -> RoleEnd:
        """As `run`, in the main thread: no call is answered meanwhile, and SIGTERM asks it to end.

        Of an actor whose `max_concurrency` is 0, which to Ray means that thread.
        """
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        return self._begin(payload)

    @ray.method(concurrency_group="run")
    def run(self, payload: bytes) -> RoleEnd:
        """Runs the role to its end.

        Args:
          payload: its constructor and arguments, pickled.
        """
        return self._begin(payload)

    def _begin(self, payload: bytes) -> RoleEnd:
        _current.host = self
        log = pathlib.Path(self._place.log)
        if self._sees_logs:
            process.redirect(str(log))
            return self._run(payload)
        folder = _folder(
            self._place.run, self._place.incarnation, pathlib.Path(tempfile.gettempdir())
        )
        _make(folder)
        self._own_log = _OwnLog(folder / log.name)
        end = self._run(payload)
        return end._replace(said=self._own_log.take(_LAST * _MOST_SAID))

    def _run(self, payload: bytes) -> RoleEnd:
        place = self._place
        if other := cluster_nodes.other_version(result.versions(), place.versions):
            # The node joined when the others had been asked.
            unlike = ray.get_runtime_context().get_node_id()
            return RoleEnd(-signal.SIGKILL, f"its node {other}", unlike=unlike)
        if place.workspace:
            folder = pathlib.Path(place.workspace)
        else:
            folder = workspace_here()
            _make(folder)
        enter(Role(place.name, self._stop, folder, place.incarnation, place.start))
        done = self._attach()
        try:
            constructor, arguments = ray.cloudpickle.loads(payload)
            if "jax" in sys.modules:
                from .....agents.programs import runtime

                runtime.configure_cpu()
            made = constructor(**arguments)
            if isinstance(made, rpc.Service):
                made.prepare()
                self.serve(made)
            made.run()
            return RoleEnd(0)
        except rpc.Stopped:
            return RoleEnd(0)
        except BaseException as error:
            traceback.print_exc()
            return RoleEnd(1, process.describe(error), process.is_final(error))
        finally:
            done.set()

    @property
    def _sees_logs(self) -> bool:
        return pathlib.Path(self._place.log).parent.is_dir()

    def _find_row(self) -> tuple[heartbeat.Board, int] | None:
        """That on the board of the process that launches, if this one is on its node and sees its
        logs."""
        row = self._place.row
        if row is None or row.node != ray.get_runtime_context().get_node_id():
            return None
        if not self._sees_logs:
            return None
        with contextlib.suppress(FileNotFoundError):
            return heartbeat.Board(pathlib.Path(row.board)), row.number
        return None

    def _attach(self) -> threading.Event:
        """Begins to give signs of life; see `heartbeat.attach`."""
        return heartbeat.attach(*(self._row or (self._times, 0)))  # type: ignore[arg-type]

    def serve(self, target: Any) -> None:
        """Has calls answered by the methods of `target` from now on."""
        self._target = target
        self._ready.set()

    def call(self, incarnation: int, method: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
        """Answers another role, of the same incarnation of the run."""
        if incarnation != self._place.incarnation:
            return OTHER, self._place.incarnation
        if not self._ready.wait(_READY_SECONDS):
            return STARTING, None
        try:
            return DONE, getattr(self._target, method)(*arguments)
        except BaseException as error:
            return FAILED, process.describe(error)

    def direct(self) -> Address:
        """Returns the place of the socket at which `call` is answered as well."""
        with self._opening:
            if self._direct is None:
                self._direct = DirectServer(self.call, ray.util.get_node_ip_address())
            return self._direct.address

    @ray.method(concurrency_group="watch")
    def signs(self) -> Signs:
        """Asked by the supervisor."""
        now = time.monotonic()
        alive, loop = (now - one if one else None for one in self._times.times)
        said = b"" if self._own_log is None else self._own_log.take(_MOST_SAID)
        node = ray.get_runtime_context().get_node_id()
        return Signs(os.getpid(), node, alive, loop, said, self._row is not None)

    @ray.method(concurrency_group="watch")
    def stop(self) -> None:
        """Asks the role to end."""
        self._stop.set()


def workspace_here() -> pathlib.Path:
    """Returns the folder of the core's roles that are on the node of this thread's role."""
    place = _current.host._place
    return _folder(place.run, place.incarnation, _in_memory())


def _in_memory() -> pathlib.Path:
    """A folder of shared memory where possible."""
    memory = pathlib.Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else pathlib.Path(tempfile.gettempdir())


def _make(folder: pathlib.Path) -> None:
    """Makes a folder of this node, which all processes of the run that are on it share."""
    folder.mkdir(mode=0o700, exist_ok=True)
    # They have one parent: what is left of one that died is removed by later runs.
    workspace.claim(folder, os.getppid())


def _folder(run: str, incarnation: int, parent: pathlib.Path) -> pathlib.Path:
    return parent / f"troupe-{os.getppid()}-{run}-{incarnation}"


def remove_workspaces(run: str) -> None:
    """Removes those of a run on this node."""
    for parent in ("/dev/shm", tempfile.gettempdir()):
        for folder in pathlib.Path(parent).glob(f"troupe-{os.getppid()}-{run}-*"):
            shutil.rmtree(folder, ignore_errors=True)


def serve(target: Any) -> None:
    """Has the calls to the role that this thread runs answered by `target`, which it has made."""
    _current.host.serve(target)
