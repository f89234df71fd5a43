"""Several threads whose questions are answered together."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class Meeting:
    """Answers members once each of them has asked something, or has left.

    The last to ask has the answers computed, in its own thread, while the others wait.
    """

    def __init__(self, members: int, answer: Callable[[Mapping[int, Any]], Mapping[int, Any]]):
        """Begins without a question.

        Args:
          members: their number; they are 0 and so on.
          answer: given the questions of all members that are left, returns the answers to some of
            them, at least one. The others wait for the next time. What it raises is raised in all.
        """
        self._present = set(range(members))
        self._answer = answer
        self._asked: dict[int, Any] = {}
        self._answers: dict[int, Any] = {}
        self._changed = threading.Condition()

    def ask(self, member: int, question: Any) -> Any:
        """Returns the answer to a question, once everybody has asked one."""
        with self._changed:
            self._asked[member] = question
            self._answer_if_all()
            while member not in self._answers:
                self._changed.wait()
            found = self._answers.pop(member)
        if isinstance(found, _Raised):
            raise found.error
        return found

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """While it lasts, nothing is answered, and nobody else holds it."""
        with self._changed:
            yield

    def leave(self, member: int) -> None:
        """Goes on without a member; one may leave twice."""
        with self._changed:
            self._present.discard(member)
            self._answer_if_all()

    def _answer_if_all(self) -> None:
        if not self._asked or self._asked.keys() != self._present:
            return
        try:
            self._answers.update(self._answer(dict(self._asked)))
        except BaseException as error:
            self._answers.update(dict.fromkeys(self._asked, _Raised(error)))
        for member in self._answers:
            self._asked.pop(member, None)
        self._changed.notify_all()


class _Raised:
    """An answer that is an error."""

    def __init__(self, error: BaseException):
        self.error = error
