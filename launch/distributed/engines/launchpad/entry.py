"""The process of a role, from its fork to its end."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from ...supervision import heartbeat
from ...supervision.process import describe, is_final, redirect, set_environment
from ...supervision.role import Role, enter

_PR_SET_NAME = 15
STOP = signal.SIGUSR1
"""By which a role is asked to end."""


def run_entry(entry: Mapping[str, Any]) -> None:
    """Runs one function of a payload and ends the process: code 0, or 1 with the reason in a file.

    Args:
      entry: `name` and `log` (file) of the role, `payload` (file of functions) and `index` in it,
        `workspace` (folder), `row` on its board, `reason` (file), `environment` (variables;
        null unsets) and `path` (where modules are looked for, as in the process that launches).
    """
    code = 1
    try:
        redirect(entry["log"])
        set_environment(entry["environment"])
        sys.path[:] = entry["path"]
        _set_name(entry["name"])
        stop = threading.Event()
        # Ctrl-C and SIGTERM are the supervisor's to act on: schedulers say it to every process.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(STOP, lambda *_: stop.set())
        workspace = pathlib.Path(entry["workspace"])
        enter(Role(entry["name"], stop, workspace))
        heartbeat.attach(heartbeat.Board(workspace / heartbeat.FILE), entry["row"])
        _join_launchpad(stop)
        _load(entry["payload"], entry["index"])()
        code = 0
    except BaseException as error:
        reason = {"reason": describe(error), "final": is_final(error)}
        pathlib.Path(entry["reason"]).write_text(json.dumps(reason))
        with contextlib.suppress(OSError):  # The disk may be full.
            traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        # Not sys.exit: threads of gRPC and XLA may hold up an orderly end for ever.
        os._exit(code)


def _set_name(name: str) -> None:
    """Shows the role's name in `ps` and `top`, which have room for fifteen letters."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def _join_launchpad(stop: threading.Event) -> None:
    """Gives Launchpad's own nodes what they ask for: flags, and word of the end."""
    from absl import flags
    from launchpad.launch import worker_manager

    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["role"])
    manager = worker_manager.WorkerManager(register_in_thread=True, register_signals=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The manager took it.
    manager._stop_event = stop


def _load(payload: str, index: int) -> Callable[[], Any]:
    import cloudpickle

    with open(payload, "rb") as file:
        return cloudpickle.load(file)[index]
