"""The generators of reasoning-gym as tasks: `tokens:reasoning_gym/NAME`."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import types
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .. import registry
from ..adapter import show
from ..errors import InvalidOptionError
from .tasks import split

PREFIX = "tokens:reasoning_gym/"
_EXTRA = "tokens"
_OURS = ("seed", "size")
"""Fields of every generator's config that follow from the environment's seed."""
_CHUNK = 500
"""Entries that are made of one seed; the next has a generator of its own."""


class Question(str):
    """A prompt that carries the entry that it is of.

    Attributes:
      entry: `question`, `answer` and `metadata`, as the generator has made them.
    """

    entry: Mapping[str, Any]

    @classmethod
    def of(cls, entry: Mapping[str, Any], template: str) -> Question:
        """Makes the prompt of an entry; raises LookupError or ValueError if the template cannot."""
        prompt = cls(template.format_map({**entry["metadata"], "question": entry["question"]}))
        prompt.entry = entry
        return prompt


class ReasoningTask:
    """A generator of reasoning-gym, with its own score.

    Most scores are 1 for the solution, 0 for an answer of another form, and something between for
    one of the right form.
    """

    def __init__(
        self, id: str, *, template: str = "{question}\n", partial: bool = True, **arguments: Any
    ) -> None:
        """Makes the task.

        Args:
          id: `PREFIX` and the generator's name.
          template: the prompt, where {question} stands for the generator's question, and the name
            of an entry of its metadata for that: "{expression} =" of chain_sum, say.
          partial: False: an answer whose score is below 1 scores 0.
          **arguments: fields of the generator's config, but its seed and size.

        Raises:
          MissingExtraError: if reasoning-gym is not installed.
          UnknownEnvironmentError: if there is no such generator; the message lists near ones.
          InvalidOptionError: if an argument has a value that it cannot have.
        """
        factory = _import(id)
        registry.check_known(id, [f"{PREFIX}{name}" for name in sorted(factory.DATASETS)])
        self._id, self._template, self._partial = id, template, partial
        self._arguments = arguments
        self._kind, self._config_class = factory.DATASETS[id.removeprefix(PREFIX)]
        self._check({"template": template, "partial": partial, **arguments})
        try:
            self._scoring = self._generator(0)
        except Exception as error:  # A config refuses values by assertions mostly.
            if arguments:
                raise registry.invalid_arguments(id, arguments, error) from error
            raise InvalidOptionError(f"{id} needs arguments: {error}") from error
        entry = self._scoring[0]
        try:
            Question.of(entry, template)
        except (LookupError, ValueError, AttributeError) as error:
            shown = [name for name, value in entry["metadata"].items() if not _is_nested(value)]
            raise InvalidOptionError(
                f"{id}: template {template!r} cannot be filled ({type(error).__name__}: {error}); "
                f"it may hold {', '.join(f'{{{name}}}' for name in ['question', *shown])}"
            ) from None

    def prompts(self, seed: int, held_out: bool) -> Iterator[str]:
        return split(self._questions(seed), held_out)

    def solution(self, prompt: str) -> str | None:
        answer = self._entry(prompt)["answer"]
        return answer if isinstance(answer, str) else None

    def score(self, prompt: str, answer: str) -> float:
        score = self._scoring.score_answer(answer, self._entry(prompt))
        return score if self._partial else float(score >= 1.0)

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (self._id, self._template, self._partial, self._arguments)

    def _entry(self, prompt: str) -> Mapping[str, Any]:
        if not isinstance(prompt, Question):
            raise TypeError(f"{self._id} scores prompts that it has yielded, got {show(prompt)}")
        return prompt.entry

    def _questions(self, seed: int) -> Iterator[Question]:
        # Generators add the index to their seed: neighbouring seeds would share their entries.
        seeds = np.random.default_rng(seed)
        while True:
            generator = self._generator(int(seeds.integers(2**31)))
            for index in range(_CHUNK):
                yield Question.of(generator[index], self._template)

    def _generator(self, seed: int) -> Any:
        arguments = dict(self._arguments)
        if self._id == f"{PREFIX}composite":  # Of others, each by a dict of name, weight, config.
            described = importlib.import_module("reasoning_gym.composite").DatasetSpec
            arguments["datasets"] = [described(**one) for one in arguments.get("datasets", [])]
        config = self._config_class(**arguments, seed=seed, size=_CHUNK)
        if hasattr(config, "validate"):
            config.validate()
        return self._kind(config=config)

    def _check(self, arguments: Mapping[str, Any]) -> None:
        """Raises InvalidOptionError where an argument is of another name or type than a field, or
        than a parameter of ours."""
        ours = inspect.signature(ReasoningTask).parameters.values()
        known = {one.name: one for one in ours if one.kind is inspect.Parameter.KEYWORD_ONLY}
        for field in dataclasses.fields(self._config_class):
            default = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            if field.name not in _OURS:
                known[field.name] = inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=default
                )
        for name in _OURS:
            if name in arguments:
                raise InvalidOptionError(f"{self._id}: {name} follows from the run's seed")
        registry.check_arguments(self._id, known, arguments)
        for name, value in arguments.items():
            _check_kind(self._id, name, value, known[name].default)


def _remake(id: str, template: str, partial: bool, arguments: Mapping[str, Any]) -> ReasoningTask:
    return ReasoningTask(id, template=template, partial=partial, **arguments)


def _check_kind(id: str, name: str, value: Any, default: Any) -> None:
    """Raises InvalidOptionError where a value is of another kind than its default."""
    for kinds, words in _KINDS.items():
        if isinstance(default, kinds) and not isinstance(value, kinds):
            raise InvalidOptionError(f"{id}: {name} must be {words}, got {value!r}")
    if type(default) is int and type(value) is not int:
        raise InvalidOptionError(f"{id}: {name} must be a whole number, got {value!r}")


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list | tuple | set)


_KINDS: dict[Any, str] = {
    str: "a text",
    (list, tuple): "a list, such as [1,2]",
    dict: "a dict, such as {'a':1}",
}


def _import(id: str) -> types.ModuleType:
    with warnings.catch_warnings():  # Of code that it needs, when that is compiled.
        warnings.simplefilter("ignore")
        registry.import_extra("reasoning_gym", _EXTRA, id)
        return registry.import_extra("reasoning_gym.factory", _EXTRA, id)
