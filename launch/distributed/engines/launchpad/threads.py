"""Roles as threads of this process."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...supervision import heartbeat
from ...supervision.process import describe, is_final
from ...supervision.role import Role, Settings, enter


class ThreadHandle:
    """One incarnation of one role."""

    pid: int | None = None
    ended_at = 0.0
    killed = False

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self.stop = threading.Event()
        self._reason = ""
        self.final = False

    @property
    def running(self) -> bool:
        return self.exit_code is None

    def terminate(self) -> None:
        self.stop.set()

    def kill(self) -> None:
        self.stop.set()  # More cannot be done to a thread.

    def reason(self) -> str:
        return self._reason

    def run(self, role: Role, function: Callable[[], Any], log: pathlib.Path) -> None:
        try:
            function()
            self.exit_code = 0
        except BaseException as error:
            self._reason, self.final = describe(error), is_final(error)
            with log.open("a") as file:
                traceback.print_exc(file=file)
            self.exit_code = 1


class ThreadLauncher:
    """Starts roles as threads."""

    kills = False

    def __init__(self, workspace: pathlib.Path, logs: pathlib.Path, board: heartbeat.Board):
        self._workspace, self._logs, self._board = workspace, logs, board
        self._aside = contextlib.ExitStack()
        self._aside.enter_context(_libraries_write_to(logs / "libraries.log"))

    def warm(self, settings: Sequence[Settings]) -> None:
        """Nothing to do: threads share the modules of this process."""

    def start(
        self, name: str, function: Callable[[], Any], row: int, settings: Settings
    ) -> ThreadHandle:
        """Starts a role: its function in a thread of its own (see `ProcessLauncher.start`)."""
        handle = ThreadHandle()
        role = Role(name, handle.stop, self._workspace)
        self._board.clear(row)

        def run() -> None:
            from launchpad.launch import worker_manager

            enter(role)
            done = heartbeat.attach(self._board, row)
            worker_manager._WORKER_MANAGERS.manager = _Manager(handle.stop)
            try:
                handle.run(role, function, self._logs / f"{name.replace('/', '-')}.log")
            finally:
                done.set()

        threading.Thread(target=run, name=name, daemon=True).start()
        return handle

    def poll(self) -> None:
        """Handles bring themselves up to date."""

    def close(self) -> None:
        self._aside.close()


@contextlib.contextmanager
def _libraries_write_to(log: pathlib.Path) -> Iterator[None]:
    """Sends to a file what C++ libraries print on the standard error, but not what Python prints.

    Reverb logs whatever its level, by the file descriptor; a role in a process has a log for that.
    """
    before, python = os.dup(2), sys.stderr
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        shared = python.fileno() == 2
    except (AttributeError, OSError, ValueError):  # Somebody put another stream there.
        shared = False
    if shared:
        sys.stderr = open(os.dup(before), "w", buffering=1, encoding=python.encoding)  # noqa: SIM115
    try:
        yield
    finally:
        if shared:
            sys.stderr.close()
            sys.stderr = python
        os.dup2(before, 2)
        os.close(before)


class _Manager:
    """The manager of a thread, as Launchpad's own nodes ask it for word of the end."""

    def __init__(self, stop: threading.Event):
        self._stop = stop

    def stop_event(self) -> threading.Event:
        return self._stop

    def wait_for_stop(self, timeout_secs: float | None = None) -> bool:
        return self._stop.wait(timeout_secs)
