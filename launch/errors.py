"""Errors of a run, each of one line: a wrong request (exit code 2) or a failure (1)."""

from __future__ import annotations


class RequestError(ValueError):
    """A request that cannot be met: the message names it and says what can be. Exit code 2."""


class RunError(RuntimeError):
    """The run failed on its way: the message names the part that failed and why. Exit code 1."""


class DivergedError(RunError):
    """A state that is no longer made of finite numbers; a new start cannot help."""


class StopRun(Exception):
    """Raised by a callback: the run is to end now, with a checkpoint; the message says why."""


def exit_code(error: Exception) -> int:
    """Returns the exit code of a command that an `Interrupted`, a RunError or a ValueError ends."""
    if isinstance(error, Interrupted):
        return 128 + error.signal_number
    return 1 if isinstance(error, RunError) else 2


class Interrupted(Exception):
    """The run was asked to stop by a signal, has saved a checkpoint and has ended cleanly."""

    def __init__(self, signal_number: int, message: str):
        super().__init__(message)
        self.signal_number = signal_number
