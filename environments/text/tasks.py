"""Tasks of text: prompts without end, a score of an answer, and the solution where it is known."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import string
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from .. import options
from ..adapter import show
from ..errors import EnvironmentFault, InvalidOptionError

_PARTS = 10
"""One prompt of so many is held out."""
_MOST_DRAWS = 10_000
"""Prompts of the other kind in a row, after which there is none of the kind that is asked for."""


class Task(Protocol):
    """What `TextEnvironment` asks: prompts, and how good an answer is.

    Further attributes are looked for and may be missing: `solution(prompt) -> str`, an answer of
    the best score, to be imitated, or None where there is none; `alphabet`, the characters that
    prompts and answers are of; `grammar`, what answers may be (`grammar.from_expression`).
    """

    def prompts(self, seed: int, held_out: bool) -> Iterator[str]:
        """Yields prompts without end, the same for the same seed.

        Args:
          seed: at least 0.
          held_out: True: those of evaluations, False: those of training. No prompt is of both.
        """

    def score(self, prompt: str, answer: str) -> float:
        """Returns how good an answer is; mostly 0 for a wrong and 1 for a right one.

        Args:
          prompt: the very object that `prompts` has yielded: a subclass of str may carry what the
            score needs.
          answer: without the token that ends it.
        """


def require_task(task: Any, name: str) -> Task:
    """Returns a task.

    Raises:
      InvalidOptionError: if it has not what every task has.
    """
    for method in ("prompts", "score"):
        if not callable(getattr(task, method, None)):
            raise InvalidOptionError(
                f"{name} is {show(task)}, which has no {method}; a task has "
                "prompts(seed, held_out) and score(prompt, answer)"
            )
    return task


def is_held_out(prompt: str) -> bool:
    """True for one prompt of ten, by a hash of its text: wherever and whenever it is drawn."""
    digest = hashlib.blake2b(prompt.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % _PARTS == 0


def split(prompts: Iterable[str], held_out: bool) -> Iterator[str]:
    """Yields those of the prompts that are held out, or all others (`is_held_out`).

    Raises:
      EnvironmentFault: if none comes among 10,000.
    """
    unlike = 0
    for prompt in prompts:
        if is_held_out(prompt) == held_out:
            unlike = 0
            yield prompt
        elif (unlike := unlike + 1) == _MOST_DRAWS:
            kind = "is held out" if held_out else "is left for training"
            raise EnvironmentFault(
                f"none of {unlike:,} prompts {kind}, as there are too few different ones; make the "
                "task larger"
            )


@dataclasses.dataclass(frozen=True)
class Reverse:
    """Write the letters of a word from the last to the first: `abc=` asks for `cba`."""

    length: int = 5
    """Letters of the longest word; each word has from 1 to so many."""
    letters: int = 8
    """The first so many letters of the English alphabet are written with."""
    partial: bool = False
    """Whether an answer scores the share of its letters that are right, in place of 0."""

    def __post_init__(self) -> None:
        options.integer("length", self.length, 1, 1_000)
        options.integer("letters", self.letters, 2, len(string.ascii_lowercase))
        options.choice("partial", self.partial, (True, False))

    @property
    def alphabet(self) -> str:
        return string.ascii_lowercase[: self.letters] + "="

    def prompts(self, seed: int, held_out: bool) -> Iterator[str]:
        random, letters = np.random.default_rng(seed), np.array([*self.alphabet[:-1]])

        def draw() -> str:
            size = random.integers(1, self.length, endpoint=True)
            return "".join(random.choice(letters, size)) + "="

        return split((draw() for _ in itertools.count()), held_out)

    def solution(self, prompt: str) -> str:
        return prompt.removesuffix("=")[::-1]

    def score(self, prompt: str, answer: str) -> float:
        return _compare(answer, self.solution(prompt), self.partial)


@dataclasses.dataclass(frozen=True)
class Addition:
    """Add whole numbers: `17+5=` asks for `22`."""

    digits: int = 2
    """Of the largest number; how many one has is drawn first."""
    terms: int = 2
    """How many numbers are added."""
    partial: bool = False
    """Whether an answer scores the share of its digits that are right, in place of 0."""

    alphabet = string.digits + "+="
    grammar = r"\d+"

    def __post_init__(self) -> None:
        options.integer("digits", self.digits, 1, 15)
        options.integer("terms", self.terms, 2, 100)
        options.choice("partial", self.partial, (True, False))

    def prompts(self, seed: int, held_out: bool) -> Iterator[str]:
        random = np.random.default_rng(seed)

        def draw() -> str:
            digits = random.integers(1, self.digits, self.terms, endpoint=True)
            return "+".join(str(random.integers(10**size)) for size in digits.tolist()) + "="

        return split((draw() for _ in itertools.count()), held_out)

    def solution(self, prompt: str) -> str:
        return str(sum(map(int, prompt.removesuffix("=").split("+"))))

    def score(self, prompt: str, answer: str) -> float:
        return _compare(answer, self.solution(prompt), self.partial)


def _compare(answer: str, solution: str, partial: bool) -> float:
    """Returns 1 for the solution; for others 0, or the share of characters in their places."""
    if answer == solution or not partial:
        return float(answer == solution)
    right = sum(a == b for a, b in zip(answer, solution, strict=False))
    return right / max(len(answer), len(solution))
