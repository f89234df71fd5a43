"""Ids of tasks of text: "tokens:NAME?key=value" for one of `TASKS`, and "tokens:MODULE:FUNCTION"
for what a function of a module makes."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import urllib.parse
from collections.abc import Mapping
from typing import Any, NamedTuple

import dm_env
import numpy as np

from .. import options, registry
from ..adapter import show
from ..errors import EnvironmentFault, InvalidOptionError
from ..seeding import derive_seed
from ..vector import Vector
from . import grammar as grammars
from . import reasoning
from .environment import MOST_TOKENS, TextEnvironment
from .tasks import Addition, Reverse, Task, require_task
from .tokenizers import PRINTABLE, CharacterTokenizer, FileTokenizer, Tokenizer
from .verifiers import SeparateVerifier, Verifier

PREFIX = "tokens:"
TASKS = {
    "addition": Addition,
    "reverse": Reverse,
}
"""Tasks without dependencies, by name."""
TIME_LIMIT = 10.0
"""Seconds of a score of tasks that are not `TASKS`."""
CHARACTERS = "characters"
"""The tokenizer that is made where none is named."""
OF_THE_TASK = "of the task"
"""The grammar that is taken where none is named."""
_OF_THE_LAYOUT = ("prompt_length", "answer_length", "tokenizer", "grammar")
_OPTIONS = ("answers", "held_out", *_OF_THE_LAYOUT)
_SAMPLES, _SAMPLES_HELD_OUT = 128, 4
"""Prompts of training and held out that lengths and the alphabet are found from. Of some tasks one
takes a tenth of a second, and one that is held out ten times as long."""


class TextLayout(NamedTuple):
    """How the texts of a task become arrays."""

    tokenizer: Tokenizer
    prompt_length: int
    answer_length: int
    grammar: np.ndarray | None


def make(
    id: str,
    seed: int,
    num_envs: int | None,
    *,
    reward_clip: float | None = None,
    **arguments: Any,
) -> dm_env.Environment | Vector:
    """Makes the environment of a task, or a vector of them.

    Args:
      id: `PREFIX` and a name; options may follow as in "tokens:reverse?length=3&letters=4".
      seed: at least 0; environment i of a vector has `derive_seed(seed, i)`.
      num_envs: None for one environment.
      reward_clip: of `TextEnvironment`.
      **arguments: of `TextEnvironment`, and the task's own. Lengths that are not given are those
        of the longest of some samples. `time_limit`: seconds of a score (`SeparateVerifier`); None:
        none.

    Raises:
      UnknownEnvironmentError: if there is no such id; the message lists near ones.
      InvalidOptionError: if an argument has a value that it cannot have.
    """
    name, given = parse(id)
    twice = sorted({*given} & {*arguments})
    if twice:
        raise InvalidOptionError(f"{twice[0]} is given twice, in {id} and beside it")
    arguments = {**given, **arguments}
    own = {key: arguments.pop(key) for key in _OPTIONS if key in arguments}
    time_limit = arguments.pop("time_limit", None if _task_name(name) in TASKS else TIME_LIMIT)
    try:
        task = make_task(name, arguments)
        layout = find_layout(task, **{key: own.pop(key) for key in _OF_THE_LAYOUT if key in own})
        verifier = Verifier(task, name)
        if time_limit is not None:
            makes = functools.partial(make_task, name, arguments)
            verifier = SeparateVerifier(makes, name, time_limit)
        environments = [
            TextEnvironment(
                task,
                seed=derive_seed(seed, index),
                verifier=verifier,
                reward_clip=reward_clip,
                name=name,
                **layout._asdict(),
                **own,
            )
            for index in range(num_envs or 1)
        ]
    except EnvironmentFault as fault:
        text = str(fault)
        raise type(fault)(text if name in text else f"{name}: {text}") from None
    return environments[0] if num_envs is None else Vector(environments)


def parse(id: str) -> tuple[str, dict[str, Any]]:
    """Returns an id without its options, and these as Python writes their values."""
    name, _, query = id.partition("?")
    try:
        pairs = urllib.parse.parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise InvalidOptionError(f"{id}: options are written as in {name}?key=value&...") from None
    return name, {key: _literal(text) for key, text in pairs}


def _task_name(name: str) -> str:
    return name.removeprefix(PREFIX)


def make_task(name: str, arguments: Mapping[str, Any]) -> Task:
    """Makes the task of an id without options."""
    place, colon, function = _task_name(name).rpartition(":")
    if colon:
        creator: Any = registry.import_function(name, place, function)
    elif name.startswith(reasoning.PREFIX):
        return reasoning.ReasoningTask(name, **arguments)
    else:
        registry.check_known(name, [f"{PREFIX}{one}" for one in TASKS])
        creator = TASKS[function]
        registry.check_arguments(name, inspect.signature(creator).parameters, arguments)
    try:
        return require_task(creator(**arguments), name)
    except EnvironmentFault:
        raise
    except Exception as error:  # What a constructor says of an argument that it cannot take.
        if arguments:
            raise registry.invalid_arguments(name, arguments, error) from error
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InvalidOptionError(f"{name} cannot be made: {reason}") from error


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


def _literal(text: str) -> Any:
    """Returns what a text of an id stands for."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
