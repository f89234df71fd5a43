"""Ids of tasks of text: "tokens:NAME?key=value" for one of `TASKS`, and "tokens:MODULE:FUNCTION"
for what a function of a module makes."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import urllib.parse
from collections.abc import Mapping
from typing import Any

import dm_env

from .. import registry
from ..errors import EnvironmentFault, InvalidOptionError
from ..seeding import derive_seed
from ..vector import Vector
from . import reasoning
from .environment import TextEnvironment
from .layout import TextLayout, find_layout
from .tasks import Addition, Reverse, Task, require_task
from .verifiers import SeparateVerifier, Verifier

PREFIX = "tokens:"
TASKS = {
    "addition": Addition,
    "reverse": Reverse,
}
"""Tasks without dependencies, by name."""
TIME_LIMIT = 10.0
"""Seconds of a score of tasks that are not `TASKS`."""
_LAYOUTS: dict[str, TextLayout] = {}
"""Those that this process has found, by what they are of."""
_OF_THE_LAYOUT = ("prompt_length", "answer_length", "tokenizer", "grammar")
_OPTIONS = ("answers", "held_out", *_OF_THE_LAYOUT)


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
        given = {key: own.pop(key) for key in _OF_THE_LAYOUT if key in own}
        layout = _layout(name, task, arguments, given)
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


def _layout(
    name: str, task: Task, arguments: Mapping[str, Any], given: Mapping[str, Any]
) -> TextLayout:
    """Returns the layout of a task; of generators that may take seconds, found once."""
    try:
        key = json.dumps([name, {**arguments}, {**given}], sort_keys=True)
    except TypeError:  # Of an object of the caller's own.
        key = ""
    if not key or not name.startswith(reasoning.PREFIX):
        return find_layout(task, **given)
    if key not in _LAYOUTS:
        _LAYOUTS[key] = find_layout(task, **given)
    return _LAYOUTS[key]


def _literal(text: str) -> Any:
    """Returns what a text of an id stands for."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
