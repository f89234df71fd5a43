"""The process from which roles are forked.

Importing TensorFlow, which Reverb needs, takes seconds of CPU time in each process; forked from one
that has imported it, a role starts in milliseconds and shares the memory. The zygote imports, keeps
one thread, and forks on request. A role is a session of its own, and dies when the zygote does,
which dies when its supervisor does: nothing outlives a program whose head was killed.

Messages are JSON over a socket that keeps their bounds. Asked: {"start": id, "entry": {...}},
{"there": true}. Answered: {"ready": true}, {"started": id, "pid": n}, {"ended": id, "status": n},
{"here": true}.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any

from . import servers

MAX_MESSAGE = 1 << 16
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when the one that forked it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # It ended before the call.


class Zygote:
    """Serves the requests of one supervisor until it goes away."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self._roles: dict[int, int] = {}
        # A child that ends interrupts the wait below through this pipe.
        self._wakeup, writer = os.pipe()
        os.set_blocking(writer, False)
        os.set_blocking(self._wakeup, False)
        signal.set_wakeup_fd(writer)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> dict[str, Any] | None:
        """Returns None when the supervisor is gone; in a forked role, what it is to run."""
        self._send(ready=True)
        while True:
            waiting: list[Any] = [self._connection, self._wakeup]
            readable, _, _ = select.select(waiting, [], [])
            if self._wakeup in readable:
                os.read(self._wakeup, 4096)
                self._reap()
            if self._connection in readable:
                message = self._receive()
                if not message:
                    return None
                request = json.loads(message)
                if "there" in request:
                    self._send(here=True)
                elif self._fork(request["start"]):
                    return request["entry"]

    def _fork(self, role: int) -> bool:
        """True in the child."""
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._roles[pid] = role
            self._send(started=role, pid=pid)
            return False
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._connection.close()
        os.close(self._wakeup)
        os.setsid()
        die_with_parent(parent)
        return True

    def _reap(self) -> None:
        while self._roles:
            # Looked at first, reaped last: until then the number of the group is not used again.
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(ended.si_pid, signal.SIGKILL)
            _, status = os.waitpid(ended.si_pid, 0)
            role = self._roles.pop(ended.si_pid, None)
            if role is not None:
                self._send(ended=role, status=os.waitstatus_to_exitcode(status))

    def _receive(self) -> bytes:
        try:
            return self._connection.recv(MAX_MESSAGE)
        except ConnectionResetError:  # The supervisor went without having read all of ours.
            return b""

    def _send(self, **message: Any) -> None:
        try:
            self._connection.send(json.dumps(message).encode())
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)


def main() -> None:
    """`python -c "from ... import main; main()" FD PARENT ADDRESS MODULE...`"""
    descriptor, parent, address, *modules = sys.argv[1:]
    die_with_parent(int(parent))
    for number in (signal.SIGINT, signal.SIGTERM):  # They are the supervisor's to act on.
        signal.signal(number, signal.SIG_IGN)
    for module in modules:
        importlib.import_module(module)
    kept = servers.kept_to(address)
    kept.__enter__()  # For good: every role forked from here inherits it.
    entry = Zygote(socket.socket(fileno=int(descriptor))).serve()
    if entry is not None:
        from .entry import run_entry

        run_entry(entry)
    os._exit(0)
