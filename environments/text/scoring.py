"""The process in which a `SeparateVerifier` has its scores computed."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing.connection
import os
import pickle
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

from ..adapter import show
from .verifiers import SECONDS_MORE, Failure, call

_SECONDS_IDLE = 5.0
"""Between looks at whether the process that asks is still there."""
_SECONDS_UNSENT = 0.05
"""That scores may wait for those that follow."""


class _TooSlow(BaseException):
    """Interrupts a score; no `except Exception` of a task catches it."""


def main(fd: int) -> None:
    """Answers what is asked over a socket until that is closed, or who asks is gone.

    First comes a pickle of a function that makes the task and of the limit of time, which None or a
    `Failure` answers. Then come pairs of a prompt and answers, which lists of scores answer: one
    where all are there soon.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Who asks is told, too, and closes the socket.
    signal.signal(signal.SIGALRM, _interrupt)
    parent = os.getppid()
    with multiprocessing.connection.Connection(fd) as peer, contextlib.suppress(EOFError, OSError):
        made, limit = pickle.loads(peer.recv_bytes())
        try:
            task = made()
        except Exception as error:  # It may have mistakes of any kind.
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            peer.send(Failure(f"raised {reason}"))
            return
        peer.send(None)
        while True:
            while not peer.poll(_SECONDS_IDLE):
                if os.getppid() != parent:
                    return
            prompt, answers = peer.recv()
            _answer(peer, functools.partial(_limited, task, prompt, limit=limit), answers)


def _answer(
    peer: multiprocessing.connection.Connection, score: Callable[[str], Any], answers: list[str]
) -> None:
    """Sends scores in as few messages as keep who asks waiting for `_SECONDS_UNSENT` at most."""
    scores, sent = [], time.monotonic()
    for answer in answers:
        scores.append(score(answer))
        if time.monotonic() > sent + _SECONDS_UNSENT:
            peer.send(scores)
            scores, sent = [], time.monotonic()
    if scores:
        peer.send(scores)


def _limited(task: Any, prompt: str, answer: str, limit: float) -> Any:
    """Returns a score, or a `Failure` where it is not there in time.

    Python is interrupted. What cannot be is ended by who asks, or where nobody asks any more by the
    second timer, which needs no Python.
    """
    try:
        signal.setitimer(signal.ITIMER_REAL, limit)
        signal.setitimer(signal.ITIMER_PROF, limit + 2 * SECONDS_MORE)
        try:
            score = call(task, prompt, answer)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_PROF, 0)
    except _TooSlow:
        return Failure(f"took more than {limit:g} s")
    except SystemExit as end:
        return Failure(f"called sys.exit({end.code!r})")
    return score if type(score) in (bool, int, float, Failure) else _plain(score)


def _plain(score: Any) -> Any:
    """Returns what can be sent of a score: of other libraries' numbers Python's."""
    try:
        return float(score) if not isinstance(score, str) else score
    except (TypeError, ValueError):
        return show(score)


def _interrupt(*_: Any) -> NoReturn:
    raise _TooSlow
