"""Grammars of answers: finite automata over tokens, from a regular expression.

An expression has characters, classes ([a-z], [^0-9]), `.` for any character, `\\d`, groups, `|` and
the repetitions `*`, `+`, `?`, `{m}`, `{m,n}` and `{m,}`; a backslash takes the next character as it
is. Its states are its derivatives (Brzozowski, 1964, https://doi.org/10.1145/321239.321249): what
may follow a text that has been read.

Letters: S states, V tokens.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import InvalidOptionError
from .tokenizers import Tokenizer

# An expression is a tuple: its kind and its parts.
Expression = tuple[Any, ...]
_NOTHING: Expression = ("nothing",)
"""Matches no text."""
_EMPTY: Expression = ("empty",)
"""Matches the empty text."""
MOST_STATES = 10_000


def from_expression(expression: str, tokenizer: Tokenizer) -> np.ndarray:
    """Returns the automaton of the answers that match an expression, int32 [S, V].

    The token `end` may come where an answer may end, and leaves the state as it is; `pad` never
    comes. There is no state from which an answer could not be ended.

    Raises:
      InvalidOptionError: if the expression cannot be read, or matches no text of these tokens.
    """
    texts = {
        token: tokenizer.decode([token])
        for token in range(tokenizer.size)
        if token not in (tokenizer.pad, tokenizer.end)
    }
    texts = {token: text for token, text in texts.items() if text}
    start = _Parser(expression, {*"".join(texts.values())}).parse()
    states, order = {start: 0}, [start]
    moves: list[dict[int, int]] = []
    for state in order:  # Which grows on the way.
        row: dict[int, int] = {}
        for token, text in texts.items():
            following = functools.reduce(_after, text, state)
            if following != _NOTHING:
                if following not in states:
                    states[following] = len(order)
                    order.append(following)
                row[token] = states[following]
        if _may_end(state):
            row[tokenizer.end] = states[state]
        moves.append(row)
        if len(order) > MOST_STATES:
            raise InvalidOptionError(
                f"the grammar {expression!r} has more than {MOST_STATES:,} states"
            )
    table = np.full((len(moves), tokenizer.size), -1, np.int32)
    for number, row in enumerate(moves):
        table[number, [*row]] = [*row.values()]
    ends = np.array([_may_end(state) for state in order])
    return _without_dead_ends(table, ends, expression)


def from_sets(sets: Sequence[Iterable[str]], tokenizer: Tokenizer) -> np.ndarray:
    """Returns the automaton of answers with one character of each set in turn, int32 [S, V].

    Raises:
      InvalidOptionError: if a set is empty, or holds what no token stands for.
    """
    written = {one: f"\\{one}" for one in "]^-\\"}
    classes = ("".join(written.get(one, one) for one in sorted({*each})) for each in sets)
    return from_expression("".join(f"[{each}]" for each in classes), tokenizer)


def allows(grammar: np.ndarray, tokens: Iterable[int]) -> bool:
    """True if an automaton lets the tokens come one after another."""
    state = 0
    for token in tokens:
        state = grammar[state, token]
        if state < 0:
            return False
    return True


def _without_dead_ends(table: np.ndarray, ends: np.ndarray, expression: str) -> np.ndarray:
    """Returns the automaton without the states from which no answer can be ended."""
    alive, before = ends, None
    while before is None or (alive != before).any():
        before = alive
        alive = alive | ((table >= 0) & alive[table]).any(axis=1)
    if not alive[0]:
        raise InvalidOptionError(
            f"the grammar {expression!r} matches no answer that these tokens can write"
        )
    numbers = np.where(alive, np.cumsum(alive) - 1, -1)
    return np.where(table >= 0, numbers[table], -1)[alive].astype(np.int32)


class _Parser:
    """Reads an expression, by recursive descent.

    Attributes:
      alphabet: the characters that there are, for `.` and `[^...]`.
    """

    def __init__(self, text: str, alphabet: set[str]) -> None:
        self.alphabet = frozenset(alphabet)
        self._text, self._place = text, 0

    def parse(self) -> Expression:
        found = self._either()
        if self._place < len(self._text):
            raise self._wrong("a ) without (")
        return found

    def _either(self) -> Expression:
        found = self._sequence()
        while self._take("|"):
            found = _either(found, self._sequence())
        return found

    def _sequence(self) -> Expression:
        parts = []
        while self._place < len(self._text) and self._text[self._place] not in "|)":
            parts.append(self._repeated())
        return functools.reduce(lambda right, left: _both(left, right), reversed(parts), _EMPTY)

    def _repeated(self) -> Expression:
        found = self._one()
        while True:
            if self._take("*"):
                found = _repeat(found, 0, None)
            elif self._take("+"):
                found = _repeat(found, 1, None)
            elif self._take("?"):
                found = _repeat(found, 0, 1)
            elif self._take("{"):
                found = _repeat(found, *self._counts())
            else:
                return found

    def _counts(self) -> tuple[int, int | None]:
        least = self._number()
        most: int | None = least
        if self._take(","):
            most = None if self._text[self._place : self._place + 1] == "}" else self._number()
        if not self._take("}") or (most is not None and not least <= most <= 1_000):
            raise self._wrong("no {m}, {m,} or {m,n}")
        return least, most

    def _number(self) -> int:
        start = self._place
        while self._text[self._place : self._place + 1].isdecimal():
            self._place += 1
        if start == self._place:
            raise self._wrong("no number")
        return int(self._text[start : self._place])

    def _one(self) -> Expression:
        if self._take("("):
            found = self._either()
            if not self._take(")"):
                raise self._wrong("no )")
            return found
        if self._take("["):
            return self._class()
        if self._take("."):
            return ("of", self.alphabet)
        if self._text[self._place] in "*+?{":
            raise self._wrong("nothing to repeat")
        return ("of", self._characters())

    def _class(self) -> Expression:
        negated, found = self._take("^"), frozenset[str]()
        while not self._take("]"):
            if self._place >= len(self._text):
                raise self._wrong("no ]")
            first = self._characters()
            following = self._text[self._place : self._place + 2]
            if following[:1] == "-" and following[1:] not in ("]", "") and len(first) == 1:
                self._place += 1
                low, high = map(ord, (*first, *self._characters()))
                first = frozenset(map(chr, range(low, high + 1)))
            found |= first
        return ("of", self.alphabet - found if negated else found)

    def _characters(self) -> frozenset[str]:
        """Returns the next character, or those that an escape stands for."""
        one = self._text[self._place]
        self._place += 1
        if one != "\\":
            return frozenset(one)
        escaped = self._text[self._place : self._place + 1]
        if not escaped:
            raise self._wrong("nothing behind the \\")
        self._place += 1
        return frozenset({"d": string.digits, "n": "\n"}.get(escaped, escaped))

    def _take(self, character: str) -> bool:
        found = self._text[self._place : self._place + 1] == character
        self._place += found
        return found

    def _wrong(self, what: str) -> InvalidOptionError:
        return InvalidOptionError(
            f"the grammar {self._text!r} has {what} at character {self._place + 1}"
        )


def _either(left: Expression, right: Expression) -> Expression:
    """Matches what one of two does; equal sets of alternatives are one value."""
    parts = frozenset(
        part
        for one in (left, right)
        for part in (one[1] if one[0] == "either" else (one,))
        if part != _NOTHING
    )
    if len(parts) < 2:
        return next(iter(parts), _NOTHING)
    return ("either", parts)


def _both(left: Expression, right: Expression) -> Expression:
    """Matches what one does and then the other."""
    if _NOTHING in (left, right):
        return _NOTHING
    if left == _EMPTY:
        return right
    if right == _EMPTY:
        return left
    if left[0] == "both":  # To the right, so that equal sequences are one value.
        return ("both", left[1], _both(left[2], right))
    return ("both", left, right)


def _repeat(one: Expression, least: int, most: int | None) -> Expression:
    """Matches repetitions of what one does."""
    found: Expression = ("many", one) if most is None else _EMPTY
    for _ in range(0 if most is None else most - least):
        found = _either(_EMPTY, _both(one, found))
    for _ in range(least):
        found = _both(one, found)
    return found


@functools.lru_cache(maxsize=1 << 16)
def _may_end(one: Expression) -> bool:
    """True if it matches the empty text."""
    kind = one[0]
    if kind == "either":
        return any(map(_may_end, one[1]))
    if kind == "both":
        return _may_end(one[1]) and _may_end(one[2])
    return kind in ("empty", "many")


@functools.lru_cache(maxsize=1 << 16)
def _after(one: Expression, character: str) -> Expression:
    """Returns what matches the rest of the texts that begin with a character."""
    kind = one[0]
    if kind == "of":
        return _EMPTY if character in one[1] else _NOTHING
    if kind == "either":
        return functools.reduce(_either, (_after(part, character) for part in one[1]), _NOTHING)
    if kind == "both":
        found = _both(_after(one[1], character), one[2])
        return _either(found, _after(one[2], character)) if _may_end(one[1]) else found
    if kind == "many":
        return _both(_after(one[1], character), one)
    return _NOTHING
