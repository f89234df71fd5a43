"""Tokenizers: text as numbers of a vocabulary, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ..errors import InvalidOptionError


class Tokenizer(Protocol):
    """Text as numbers in [0, `size`), and back.

    Two of one kind are equal where they do the same: the specs of environments are compared by it.

    Attributes:
      size: numbers of the vocabulary, V.
      pad: the number that fills a row; never part of a text.
      end: the number that ends an answer; never part of a text.
    """

    size: int
    pad: int
    end: int

    def encode(self, text: str) -> list[int]:
        """Returns the numbers of a text, without `pad` and `end`.

        Raises:
          InvalidOptionError: if it holds a character that no number stands for.
        """

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of numbers up to the first `end`; `pad` stands for none."""


class CharacterTokenizer:
    """A number for each character of an alphabet: 0 pads, 1 ends, from 2 on they follow."""

    pad = 0
    end = 1

    def __init__(self, alphabet: str) -> None:
        """Numbers the characters in their order.

        Raises:
          InvalidOptionError: if there is none, or one twice.
        """
        if not isinstance(alphabet, str) or not alphabet or len({*alphabet}) < len(alphabet):
            raise InvalidOptionError(
                f"an alphabet is a text of characters, each once, got {alphabet!r}"
            )
        self.alphabet = alphabet
        self.size = len(alphabet) + 2
        self._numbers = {character: i + 2 for i, character in enumerate(alphabet)}

    def encode(self, text: str) -> list[int]:
        try:
            return [self._numbers[character] for character in text]
        except KeyError as error:
            raise InvalidOptionError(
                f"the alphabet {self.alphabet!r} has no {error.args[0]!r}, which is in the text "
                f"{text!r}"
            ) from None

    def decode(self, ids: Iterable[int]) -> str:
        found = []
        for number in ids:
            if number == self.end:
                break
            if number != self.pad:
                found.append(self.alphabet[number - 2])
        return "".join(found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CharacterTokenizer) and self.alphabet == other.alphabet

    def __hash__(self) -> int:
        return hash(self.alphabet)

    def __repr__(self) -> str:
        return f"CharacterTokenizer({self.alphabet!r})"
