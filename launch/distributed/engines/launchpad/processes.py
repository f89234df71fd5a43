"""Roles as processes, forked from a zygote and watched."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ... import addresses
from ...supervision import heartbeat
from ...supervision.role import Settings
from . import entry as role_entry
from . import zygote

_LIGHT = ("cloudpickle", "launchpad", "courier", "jax", "haiku", "optax", "gymnasium")
_REVERB = (*_LIGHT, "reverb", "acme.adders.reverb")
_ASK_SECONDS, _START_SECONDS = 2.0, 120.0
SILENT_SECONDS = 8.0
"""Seconds for which a zygote may leave a question unanswered."""


class ZygoteProcess:
    """A zygote as its supervisor sees it."""

    def __init__(self, modules: Sequence[str], log: pathlib.Path, address: str):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection = ours
        code = f"from {zygote.__name__} import main; main()"
        arguments = [str(theirs.fileno()), str(os.getpid()), address, *modules]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        theirs.close()
        ours.setblocking(False)
        self._is_ready = False
        self._heard = time.monotonic()
        self._asked: float | None = None

    def send(self, message: Mapping[str, Any]) -> None:
        # Its end is noticed where messages are received.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(json.dumps(message).encode())

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that have come; None if it is gone."""
        messages: list[dict[str, Any]] = []
        while True:
            try:
                message = self.connection.recv(zygote.MAX_MESSAGE)
            except BlockingIOError:
                return messages
            except ConnectionResetError:
                return messages or None
            if not message:
                return messages or None
            messages.append(json.loads(message))
            self._is_ready, self._heard, self._asked = True, time.monotonic(), None

    def is_silent(self) -> bool:
        """True if it answers no more, though it lives: it was stopped, say. Call it after
        `receive`, several times a second."""
        now = time.monotonic()
        if not self._is_ready:
            return now - self._heard > _START_SECONDS
        if self._asked is None and now - self._heard > _ASK_SECONDS:
            self._asked = now
            self.send({"there": True})
        return self._asked is not None and now - self._asked > SILENT_SECONDS

    def close(self) -> None:
        """Ends it, and with it all roles that it forked."""
        self.connection.close()
        self.process.kill()
        self.process.wait()


class ProcessHandle:
    """One incarnation of one role."""

    def __init__(self, reason: pathlib.Path):
        self.pid: int | None = None
        self.exit_code: int | None = None
        """None: it has not ended. Negative: the signal that ended it."""
        self.killed = False
        self.ended_at = 0.0
        self._reason = reason

    @property
    def running(self) -> bool:
        return self.exit_code is None

    def terminate(self) -> None:
        self._signal(role_entry.STOP)
        self._signal(signal.SIGCONT)  # A stopped process takes it only then.

    def kill(self) -> None:
        self.killed = True
        self._signal(signal.SIGKILL)

    @property
    def final(self) -> bool:
        """True if a new start cannot help."""
        return self._written().get("final", False)

    def reason(self) -> str:
        """The reason why it ended, in one line."""
        if "reason" in self._written():
            return self._written()["reason"]
        if self.exit_code is not None and self.exit_code < 0:
            return f"killed by {signal.Signals(-self.exit_code).name}"
        return f"ended with exit code {self.exit_code}"

    def _written(self) -> dict[str, Any]:
        try:
            return json.loads(self._reason.read_text())
        except (OSError, ValueError):
            return {}

    def _signal(self, number: int) -> None:
        if self.pid is not None and self.running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)


class ProcessLauncher:
    """Starts roles as processes."""

    kills = True
    """A role that hangs can be ended."""

    def __init__(
        self,
        workspace: pathlib.Path,
        logs: pathlib.Path,
        board: heartbeat.Board,
        address: str = addresses.LOOPBACK,
    ):
        """Nothing runs before the first `start`.

        Args:
          workspace: a folder that exists, for this launch only.
          logs: where every role's log file goes.
          board: signs of life.
          address: where the roles' servers listen.
        """
        self._workspace, self._logs, self._board = workspace, logs, board
        self._address = address
        self._zygotes: dict[bool, ZygoteProcess] = {}
        self._handles: dict[int, tuple[bool, ProcessHandle]] = {}
        self._numbers = itertools.count()

    def warm(self, settings: Sequence[Settings]) -> None:
        """Has the zygotes of these roles import what they need, side by side."""
        for reverb in sorted({one.reverb for one in settings}):
            self._zygote(reverb)

    def start(
        self, name: str, payload: pathlib.Path, index: int, row: int, settings: Settings
    ) -> ProcessHandle:
        """Starts a role.

        Args:
          name: "actor/3"; its log file is `actor-3.log`.
          payload: a file of functions, as Launchpad serialises them.
          index: of its function in the payload.
          row: of its signs of life on the board.
          settings: of its label.
        """
        number = next(self._numbers)
        reason = self._workspace / f"reason-{number}"
        handle = ProcessHandle(reason)
        self._handles[number] = (settings.reverb, handle)
        self._board.clear(row)
        held = {} if settings.accelerator else {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        entry = {
            "name": name,
            "log": str(self._logs / f"{name.replace('/', '-')}.log"),
            "payload": str(payload),
            "index": index,
            "workspace": str(self._workspace),
            "row": row,
            "reason": str(reason),
            "environment": {**held, **dict(settings.environment)},
            "path": sys.path,
        }
        self._zygote(settings.reverb).send({"start": number, "entry": entry})
        return handle

    def poll(self) -> None:
        """Brings the handles up to date."""
        for reverb, process in list(self._zygotes.items()):
            messages = process.receive()
            for message in messages or ():
                if "started" in message:
                    handle = self._handles[message["started"]][1]
                    handle.pid = message["pid"]
                    if handle.killed:
                        handle.kill()  # It had no number yet.
                elif "ended" in message:
                    handle = self._handles.pop(message["ended"])[1]
                    handle.exit_code, handle.ended_at = message["status"], time.monotonic()
            if messages is None or process.is_silent():
                # Its roles died with it; the next one to start makes a new zygote.
                process.close()
                del self._zygotes[reverb]
                for number, (of_reverb, handle) in list(self._handles.items()):
                    if of_reverb == reverb:
                        handle.exit_code, handle.ended_at = -signal.SIGKILL, time.monotonic()
                        del self._handles[number]

    def close(self) -> None:
        """Ends whatever is left."""
        for _, handle in self._handles.values():
            handle.kill()
        for process in self._zygotes.values():
            process.close()
        self._zygotes.clear()

    def _zygote(self, reverb: bool) -> ZygoteProcess:
        if reverb not in self._zygotes:
            modules = _REVERB if reverb else _LIGHT
            self._zygotes[reverb] = ZygoteProcess(modules, self._logs / "zygote.log", self._address)
        return self._zygotes[reverb]
