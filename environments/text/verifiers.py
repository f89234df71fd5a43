"""Scores of answers by a task's `score`, which may raise or hang: here, or in a process apart."""

from __future__ import annotations

import logging
import multiprocessing.connection
import os
import pickle
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .. import options
from ..adapter import is_reward, show
from ..errors import EnvironmentFault, InvalidOptionError, InvalidRewardError
from .tasks import Task

_LOG = logging.getLogger(__name__)
MOST_FAILURES = 20
"""Scores that may raise or not come in time, and one more for each hundred that come."""
LONGEST_LIMIT = 86_400.0
_SECONDS_TO_BEGIN = 300.0
SECONDS_MORE = 1.0
"""After its time a score is interrupted where it is Python; so much later its process is ended."""
_ENTRANCE = "import sys; sys.path[:] = {path!r}; from {package}.scoring import main; main({fd})"


class Failure(NamedTuple):
    """A score that did not come.

    Attributes:
      reason: in words, such as "took more than 5 s".
    """

    reason: str


class Verifier:
    """Scores answers; counts those that cannot be scored, which get 0.

    A failure is a score that raises or does not come in time. The first is logged. Where there are
    more than `MOST_FAILURES` and one for each hundred scores, it is the task that is wrong.
    """

    _failures = 0
    _scores = 0

    def __init__(self, task: Task, name: str) -> None:
        """Scores in this process, without a limit of time.

        Args:
          task: has the score.
          name: what errors call it.
        """
        self._task, self._name = task, name

    def begin(self) -> None:
        """Prepares what takes long, and does not wait for it."""

    def score(self, prompt: str, answers: Sequence[str]) -> list[float]:
        """Returns the scores of answers to a prompt.

        Raises:
          InvalidRewardError: if a score is no finite number, or too many fail.
        """
        found = []
        for answer, score in zip(answers, self._ask(prompt, answers), strict=True):
            if isinstance(score, Failure):
                self._fail(score.reason, prompt, answer)
                found.append(0.0)
                continue
            if not is_reward(score):
                raise InvalidRewardError(
                    f"{self._name}: the score of the answer {show(answer)} to {show(prompt)} is "
                    f"{show(score)}; scores must be finite float32 numbers"
                )
            found.append(float(score))
            self._scores += 1
        return found

    def close(self) -> None:
        """Ends what was begun; it begins again where it is needed."""

    def _ask(self, prompt: str, answers: Sequence[str]) -> list[Any]:
        """Returns a score or a `Failure` for each answer."""
        return [call(self._task, prompt, answer) for answer in answers]

    def _fail(self, reason: str, prompt: str, answer: str) -> None:
        self._failures += 1
        what = f"the score of the answer {show(answer)} to {show(prompt)} {reason}"
        if self._failures == 1:
            _LOG.warning("%s: %s; it counts as 0, as others will that fail", self._name, what)
        if self._failures > MOST_FAILURES + self._scores / 100:
            raise InvalidRewardError(
                f"{self._name}: {self._failures} scores of {self._scores + self._failures} failed, "
                f"the last as {what}; have score return 0 where it cannot judge, or give it more "
                "time with time_limit"
            )


def call(task: Task, prompt: str, answer: str) -> Any:
    """Returns a score, or the `Failure` of a task that raises."""
    try:
        return task.score(prompt, answer)
    except Exception as error:  # It may have mistakes of any kind.
        return Failure("raised " + " ".join(f"{type(error).__name__}: {error}".split()))


class SeparateVerifier(Verifier):
    """Scores in a process of its own, so that a score that hangs is ended.

    The process is begun with the first prompt, and again after a score that could not be
    interrupted. It ends with this object, and with this process however that ends.
    """

    def __init__(self, make_task: Callable[[], Task], name: str, time_limit: float) -> None:
        """Scores with a limit of time.

        Args:
          make_task: makes the task there; is pickled.
          name: what errors call it.
          time_limit: seconds of one score.

        Raises:
          InvalidOptionError: if the limit is no positive number, or `make_task` no pickle.
        """
        self._limit = options.seconds(
            f"{name}: time_limit", time_limit, LONGEST_LIMIT, otherwise=", or none"
        )
        try:
            self._made = pickle.dumps((make_task, self._limit))
        except Exception as error:  # Of a closure, say, or what the task holds.
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise InvalidOptionError(
                f"{name}: a score with a time_limit is computed in another process, and the task "
                f"cannot be sent there ({reason}); give time_limit none"
            ) from error
        self._name = name
        self._peer: multiprocessing.connection.Connection | None = None
        self._is_ready = False
        self._end: Callable[[], object] = lambda: None

    def begin(self) -> None:
        if self._peer is not None:
            return
        ours, theirs = socket.socketpair()
        package = __package__
        code = _ENTRANCE.format(path=sys.path, package=package, fd=theirs.fileno())
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "JAX_PLATFORMS": "cpu"},  # Devices are the agent's.
            )
        self._peer = multiprocessing.connection.Connection(ours.detach())
        self._is_ready = False
        self._end = weakref.finalize(self, _end, process, self._peer)
        self._peer.send_bytes(self._made)

    def close(self) -> None:
        self._end()
        self._peer = None

    def _ask(self, prompt: str, answers: Sequence[str]) -> list[Any]:
        found: list[Any] = []
        together = len(answers)
        try:
            while len(found) < len(answers):
                asked = answers[len(found) : len(found) + together]
                self._send(prompt, asked)
                scores, failure = self._receive(len(asked))
                found += scores
                if failure is not None:  # The process has ended; asked alone, it is known by whom.
                    found += [failure] if together == 1 else []
                    together = 1
        except BaseException:
            self.close()  # What it still sends is of no question.
            raise
        return found

    def _send(self, prompt: str, answers: Sequence[str]) -> None:
        self.begin()
        assert self._peer is not None
        if not self._is_ready:
            problem = self._next(_SECONDS_TO_BEGIN)
            if problem is not None:
                raise EnvironmentFault(f"{self._name} cannot compute scores: it {problem.reason}")
            self._is_ready = True
        self._peer.send((prompt, list(answers)))

    def _receive(self, count: int) -> tuple[list[Any], Failure | None]:
        """Returns the scores of so many answers, or some and how the process has ended."""
        found: list[Any] = []
        while len(found) < count:
            scores = self._next(self._limit + SECONDS_MORE)
            if isinstance(scores, Failure):
                return found, scores
            found += scores
        return found, None

    def _next(self, seconds: float) -> Any:
        """Returns what the process sends next; a `Failure` where it sends nothing, and is ended."""
        assert self._peer is not None
        try:
            if self._peer.poll(seconds):
                return self._peer.recv()
            reason = f"took more than {seconds - SECONDS_MORE:g} s"
        except (EOFError, OSError):
            reason = "ended its process"
        self.close()
        return Failure(reason)


def _end(process: subprocess.Popen[bytes], peer: multiprocessing.connection.Connection) -> None:
    """Ends a process at once: it holds nothing that is to be kept."""
    peer.close()
    process.kill()
    process.wait()
