"""Tokenizers: text as numbers of a vocabulary, and back."""

from __future__ import annotations

import json
import pathlib
import string
from collections.abc import Iterable
from typing import Any, Protocol

from .. import registry
from ..errors import InvalidOptionError

PRINTABLE = string.digits + string.ascii_letters + string.punctuation + " \n"
_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "</s>",
    "<eos>",
    "[EOS]",
    "[SEP]",
)
"""Tokens that end an answer, by the names that models give them; the first that there is."""
_PADS = ("<pad>", "<|pad|>", "[PAD]", "<|finetune_right_pad_id|>", "<|endoftext|>")
"""Tokens that fill rows, likewise."""


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


class FileTokenizer:
    """The tokenizer of a `tokenizer.json`, as language models bring it.

    What ends and pads is what `tokenizer_config.json` beside the file names, or a token of a usual
    name. Where nothing pads, it is the token that ends.
    """

    def __init__(self, path: str, text: str | None = None, special: str | None = None) -> None:
        """Reads the files.

        Args:
          path: of the file, or of the folder that holds it.
          text: of the file, where it has been read before.
          special: of the file beside it, likewise.

        Raises:
          MissingExtraError: if `tokenizers` is not installed.
          InvalidOptionError: if there is no such file, or none of its tokens ends a text.
        """
        self.path = path
        self._text, self._special = (text, special) if text is not None else _read(path)
        package = registry.import_extra("tokenizers", "tokens", f"tokenizer {path}")
        try:
            self._tokenizer: Any = package.Tokenizer.from_str(self._text)
        except Exception as error:  # The package has no class of its own for it.
            reason = " ".join(str(error).split())
            raise InvalidOptionError(
                f"tokenizer {path} is no file of `tokenizers`: {reason}"
            ) from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        numbers = self._tokenizer.get_vocab(with_added_tokens=True)
        self.size = max(numbers.values(), default=-1) + 1
        named = json.loads(self._special or "{}")
        end = _first(numbers, named.get("eos_token"), _ENDS)
        if end is None:
            raise InvalidOptionError(
                f"tokenizer {path} names no token that ends an answer: give its eos_token in a "
                "tokenizer_config.json beside it"
            )
        pad = _first(numbers, named.get("pad_token"), _PADS)
        self.end = end
        self.pad = end if pad is None else pad

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        found = []
        for number in ids:
            if number == self.end:
                break
            if number != self.pad:
                found.append(number)
        return self._tokenizer.decode(found, skip_special_tokens=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileTokenizer) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"FileTokenizer({self.path!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return FileTokenizer, (self.path, self._text, self._special)

    @property
    def _key(self) -> tuple[str, int, int]:
        return self._text, self.end, self.pad


def _read(path: str) -> tuple[str, str | None]:
    """Returns the text of a tokenizer's file, and of the one beside it where there is one."""
    file = pathlib.Path(path)
    if file.is_dir():
        file = file / "tokenizer.json"
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOptionError(
            f"tokenizer {path!r} cannot be read ({error}); it is a file tokenizer.json or the "
            "folder of one, 'characters' or 'printable'"
        ) from None
    beside = file.with_name("tokenizer_config.json")
    return text, beside.read_text() if beside.exists() else None


def _first(numbers: dict[str, int], named: Any, usual: Iterable[str]) -> int | None:
    """Returns the number of the token that is named, or of the first usual one that there is."""
    if isinstance(named, dict):  # With how its white space is handled.
        named = named.get("content")
    found = (numbers[name] for name in (named, *usual) if name in numbers)
    return next(found, None)
