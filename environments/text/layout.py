"""How the texts of a task become arrays: tokenizer, lengths and grammar, found from samples."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from .. import options
from ..adapter import show
from ..errors import InvalidOptionError
from . import grammar as grammars
from .environment import MOST_TOKENS
from .tasks import Task
from .tokenizers import PRINTABLE, CharacterTokenizer, FileTokenizer, Tokenizer

CHARACTERS = "characters"
"""The tokenizer that is made where none is named."""
OF_THE_TASK = "of the task"
"""The grammar that is taken where none is named."""
_SAMPLES, _SAMPLES_HELD_OUT = 128, 4
"""Prompts of training and held out that lengths and the alphabet are found from. Of some tasks one
takes a tenth of a second, and one that is held out ten times as long."""


class TextLayout(NamedTuple):
    """How the texts of a task become arrays."""

    tokenizer: Tokenizer
    prompt_length: int
    answer_length: int
    grammar: np.ndarray | None


def find_layout(
    task: Task,
    *,
    prompt_length: int | None = None,
    answer_length: int | None = None,
    tokenizer: str | Tokenizer = CHARACTERS,
    grammar: str | np.ndarray | None = OF_THE_TASK,
) -> TextLayout:
    """Returns how the texts of a task become arrays, by samples of them.

    Args:
      task: whose texts they are.
      prompt_length: P; None: that of the longest sample.
      answer_length: T; None: that of the longest solution and the token that ends it.
      tokenizer: a `Tokenizer`; `CHARACTERS`: one of the task's alphabet, or of the characters of
        the samples; "printable": one of printable ASCII; else where a `FileTokenizer` is.
      grammar: of answers, a table or an expression (`grammar.from_expression`); None: any.

    Raises:
      InvalidOptionError: if a sample does not fit what is given, or the length of answers is not
        given and the task has no solutions.
    """
    prompt_length = options.optional_integer("prompt_length", prompt_length, 1, MOST_TOKENS)
    answer_length = options.optional_integer("answer_length", answer_length, 1, MOST_TOKENS)
    prompts = [
        prompt
        for held_out, count in ((False, _SAMPLES), (True, _SAMPLES_HELD_OUT))
        for prompt in itertools.islice(task.prompts(0, held_out), count)
    ]
    solve = getattr(task, "solution", None)
    solutions = [text for text in map(solve, prompts) if text is not None] if solve else []
    found = _tokenizer(tokenizer, task, [*prompts, *solutions])
    if answer_length is None and not solutions:
        raise InvalidOptionError(
            "the task has no solution that would tell how long answers are; give an answer_length"
        )
    p = _longest("prompt", prompts, found, prompt_length, 0)
    t = _longest("answer", solutions, found, answer_length, 1)
    return TextLayout(found, p, t, _grammar(grammar, task, found, solutions))


def _tokenizer(asked: str | Tokenizer, task: Task, texts: list[str]) -> Tokenizer:
    """Returns the tokenizer that is asked for."""
    if asked == CHARACTERS:
        alphabet = getattr(task, "alphabet", None) or "".join(sorted({*"".join(texts)}))
        return CharacterTokenizer(alphabet)
    if asked == "printable":
        return CharacterTokenizer(PRINTABLE)
    if isinstance(asked, str):
        return FileTokenizer(asked)
    if not callable(getattr(asked, "encode", None)):
        raise InvalidOptionError(
            f"tokenizer must be 'characters', 'printable' or where a tokenizer.json is, got "
            f"{show(asked)}"
        )
    return asked


def _grammar(
    asked: str | np.ndarray | None, task: Task, tokenizer: Tokenizer, solutions: list[str]
) -> np.ndarray | None:
    """Returns the grammar that is asked for, which lets the solutions come."""
    text = getattr(task, "grammar", None) if asked is OF_THE_TASK else asked
    if text is None:
        return None
    if not isinstance(text, str | np.ndarray):
        raise InvalidOptionError(f"grammar must be an expression, such as '[0-9]+', got {text!r}")
    table = grammars.from_expression(text, tokenizer) if isinstance(text, str) else text
    for solution in solutions:
        if not grammars.allows(table, [*tokenizer.encode(solution), tokenizer.end]):
            raise InvalidOptionError(
                f"the grammar {show(text)} does not let the solution {show(solution)} come"
            )
    return table


def _longest(
    kind: str, texts: list[str], tokenizer: Tokenizer, given: int | None, more: int
) -> int:
    """Returns the length that is given, or that of the longest text and `more`."""
    longest = max(texts, key=lambda text: len(_encode(tokenizer, text)), default="")
    needed = max(len(_encode(tokenizer, longest)) + more, 1)
    if given is not None and given < needed:
        ended = " with the one that ends it" if more else ""
        raise InvalidOptionError(
            f"{kind}_length is {given}, but the {kind} {show(longest)} has {needed} tokens{ended}; "
            f"give at least {needed}"
        )
    return needed if given is None else given


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Returns the tokens of a text, which must be of the vocabulary."""
    tokens = tokenizer.encode(text)
    for token in tokens:
        if not 0 <= token < tokenizer.size or token == tokenizer.end:
            raise InvalidOptionError(
                f"{tokenizer!r} makes the token {token} of {show(text)}; texts are of tokens from "
                f"0 to {tokenizer.size - 1} but {tokenizer.end}, which ends them"
            )
    return tokens
