"""The search space: ranges and choices of config fields, parsed from the command line."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

from ...launch.errors import RequestError
from ...launch.specification import fields
from ...launch.specification.fields import Field


@dataclasses.dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`, both included."""

    low: float
    high: float
    log: bool = False
    """True if their logarithms are equally likely."""
    integer: bool = False

    @property
    def ends(self) -> tuple[Any, ...]:
        return self.low, self.high

    def holds(self, value: Any) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g}:{self.high:g}{':log' if self.log else ''}"


@dataclasses.dataclass(frozen=True)
class Choices:
    """One of these, as the command line writes them."""

    texts: tuple[str, ...]

    @property
    def ends(self) -> tuple[Any, ...]:
        return self.texts

    def holds(self, value: Any) -> bool:
        return fields.text(value) in self.texts

    def __str__(self) -> str:
        return ("/" if any("," in text for text in self.texts) else ",").join(self.texts)


Dimension = Range | Choices
Space = Mapping[str, Dimension]
"""By field."""


def split(config_class: type, overrides: Mapping[str, Any]) -> tuple[Space, dict[str, Any]]:
    """Divides settings into those that are swept and those that are fixed.

    `LO:HI` and `LO:HI:log` are ranges, of integers where the field is one. Values separated by
    commas are choices, by slashes where the field itself is a list ("64,64/256,256").

    Args:
      config_class: of the agent.
      overrides: by field, as the command line or a config file gives them.

    Raises:
      RequestError: if there is no such field, or a range or a choice cannot be.
    """
    known = fields.fields(config_class)
    space: dict[str, Dimension] = {}
    fixed: dict[str, Any] = {}
    for name, value in overrides.items():
        dimension = _dimension(known[name], value) if name in known else None
        if dimension is None:
            fixed[name] = value
        else:
            space[name] = dimension
    check(config_class, space, fixed)
    return space, fixed


def check(config_class: type, space: Space, fixed: Mapping[str, Any]) -> None:
    """Raises RequestError where a value of the space cannot be, whatever the others are."""
    fields.make(config_class, fixed)
    for name, dimension in space.items():
        for value in dimension.ends:
            errors = []
            for end in (0, -1):
                others = {other: one.ends[end] for other, one in space.items() if other != name}
                try:
                    fields.make(config_class, {**fixed, **others, name: value})
                except RequestError as error:
                    errors.append(error)
            if len(errors) == 2:
                raise errors[0]


def to_json(space: Space) -> dict[str, Any]:
    return {name: dataclasses.asdict(dimension) for name, dimension in space.items()}


def from_json(values: Mapping[str, Any]) -> Space:
    """The inverse of `to_json`."""
    return {
        name: Choices(tuple(one["texts"])) if "texts" in one else Range(**one)
        for name, one in values.items()
    }


def _dimension(field: Field, value: Any) -> Dimension | None:
    """Parses a range or choices of a field; None if `value` is a plain value."""
    kinds = _kinds(field.kind)
    nested = any(typing.get_origin(kind) is tuple for kind in kinds)
    if isinstance(value, list) and not nested:  # As config files have them.
        return _choice(field, [fields.text(one) for one in value])
    if not isinstance(value, str):
        return None
    if ":" in value and {int, float} & kinds:
        return _range(field, value, integer=float not in kinds)
    texts = [text.strip() for text in value.split("/" if nested else ",")]
    return _choice(field, texts) if len(texts) > 1 else None


def _choice(field: Field, texts: list[str]) -> Choices:
    # Written as the field writes them, so that 0.10 and 0.1 are one.
    written = [fields.text(field.parse(text)) for text in texts]
    for text in written:
        if written.count(text) > 1:
            raise RequestError(f"config.{field.name} is to be tried with {text} twice.")
    return Choices(tuple(written))


def _range(field: Field, text: str, integer: bool) -> Range:
    low_text, _, rest = text.partition(":")
    high_text, _, scale = rest.partition(":")
    low, high = field.parse(low_text), field.parse(high_text)
    problem = None
    if not all(isinstance(end, int | float) and math.isfinite(end) for end in (low, high)):
        problem = "both ends must be finite numbers"
    elif not low < high:
        problem = "the first number must be the smaller one"
    elif scale not in ("", "log"):
        problem = f"after the numbers comes log or nothing, and not {scale!r}"
    elif scale == "log" and low <= 0:
        problem = "a logarithmic range must begin above 0"
    if problem is not None:
        raise RequestError(
            f"config.{field.name} is {text!r}, which is no range: {problem}; "
            "LO:HI and LO:HI:log are ranges."
        )
    return Range(low, high, scale == "log", integer)


def _kinds(kind: Any) -> set[Any]:
    """The types that a field may have, one by one."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return {one for argument in typing.get_args(kind) for one in _kinds(argument)}
    return {kind}
