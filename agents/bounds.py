"""Bounds of the fields of a dataclass, checked when one is made, wherever it is made.

A frozen dataclass calls `check` at its construction, so that Python, the command line and JSON have
the same checks: the type that a field is annotated with, and for numbers the bounds that the class
says beside it.

    @dataclasses.dataclass(frozen=True)
    class Softmax:
        temperature: float = 1.0

        bounds: ClassVar[AllBounds] = {"temperature": Above(0.0, 100.0)}

        def __post_init__(self) -> None:
            check(self)
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Above(NamedTuple):
    """Bounds of which the lower is out of bounds itself."""

    low: float
    high: float | None


Bounds = tuple[float | None, float | None] | Above
"""The least and the greatest value; None: any finite number."""
AllBounds = Mapping[str, Bounds]
"""By field."""

MOST = 10**12
"""Of what is counted and costs nothing by itself, such as actor steps."""
MOST_STEPS = 10**9
"""Of what is counted in 32 bits on a device, such as gradient steps."""


def check(instance: Any, error: type[ValueError] = ValueError) -> None:
    """Checks the fields of a frozen dataclass.

    Fields of types other than numbers, truths, texts, literals and tuples of these are left alone.
    Numbers of numpy become Python's and lists tuples, so that JSON gives back what it was given.

    Args:
      instance: its class, and those it inherits from, may have `bounds`; and its class `flags`,
        those of the command line by field, for messages.
      error: what is raised.

    Raises:
      ValueError: naming the first field that cannot be so, its value and what is allowed.
    """
    kind: Any = type(instance)
    kinds, bounds = kinds_of(kind), bounds_of(kind)
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if field.name in kinds:
            try:
                plain = conform(kinds[field.name], value)
            except ValueError:
                allowed = describe(kinds[field.name])
                flag = _flag(kind, field.name)
                message = f"{field.name} is {show(value)}; it must be {allowed}{flag}."
                raise error(message) from None
            if plain is not value:
                object.__setattr__(instance, field.name, plain)
                value = plain
        if field.name in bounds:
            within(field.name, value, bounds[field.name], error, _flag(kind, field.name))


def within(
    name: str,
    value: Any,
    bounds: Bounds,
    error: Callable[[str], Exception] = ValueError,
    flag: str = "",
) -> None:
    """Raises `error` where a number, or one of a tuple, is not within bounds; None passes."""
    if value is None:
        return
    low, high = bounds
    numbers = value if isinstance(value, tuple) else (value,)
    above = isinstance(bounds, Above)

    def fits(number: Any) -> bool:
        return (
            abs(number) < float("inf")  # Not for NaN.
            and (low is None or number > low or (number == low and not above))
            and (high is None or number <= high)
        )

    if all(map(fits, numbers)):
        return
    words = [
        f"{'above' if above else 'at least'} {low}" if low is not None else "",
        f"at most {high}" if high is not None else "",
    ]
    allowed = " and ".join(word for word in words if word) or "a finite number"
    what = "each" if isinstance(value, tuple) else "it"
    raise error(f"{name} is {show(value)}; {what} must be {allowed}{flag}.")


def _flag(dataclass: type, name: str) -> str:
    """Returns the flag of the command line that a field is, as the end of a message."""
    flag = getattr(dataclass, "flags", {}).get(name)
    return f" ({flag})" if flag else ""


def bounds_of(dataclass: type) -> dict[str, Bounds]:
    """The bounds of all fields; a class's own stand in place of those it inherits."""
    found: dict[str, Bounds] = {}
    for base in reversed(dataclass.__mro__):
        found |= vars(base).get("bounds", {})
    return found


@functools.cache
def kinds_of(dataclass: type) -> dict[str, Any]:
    """The types of the fields but for those that name what is known to type checkers only."""
    found: dict[str, Any] = {}
    for base in reversed(dataclass.__mro__):
        known = vars(sys.modules[base.__module__])
        for name, kind in inspect.get_annotations(base).items():
            try:
                found[name] = eval(kind, known) if isinstance(kind, str) else kind
            except (NameError, TypeError):
                found.pop(name, None)
    names = {field.name for field in dataclasses.fields(dataclass)}
    return {name: kind for name, kind in found.items() if name in names}


def conform(kind: Any, value: Any) -> Any:
    """A value as its type has it: numbers of numpy become Python's, lists tuples.

    Raises:
      ValueError: if it is none of the type.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        for argument in arguments:
            try:
                return conform(argument, value)
            except ValueError:
                continue
        raise ValueError
    if origin is typing.Literal:
        return _require(value in arguments, value)
    if origin is tuple:
        _require(isinstance(value, tuple | list), value)
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            items = tuple(conform(arguments[0], item) for item in value)
        else:
            _require(len(value) == len(arguments), value)
            items = tuple(map(conform, arguments, value))
        same = isinstance(value, tuple) and all(map(_is, items, value))
        return value if same else items
    if kind is bool:
        return bool(_require(isinstance(value, bool | np.bool_), value))
    if kind in (int, float):
        allowed: Any = int | np.integer if kind is int else int | float | np.integer | np.floating
        _require(isinstance(value, allowed) and not isinstance(value, bool), value)
        return value.item() if isinstance(value, np.generic) else value
    if kind in (str, type(None)):
        return _require(isinstance(value, kind), value)
    return value


def describe(kind: Any) -> str:
    """A type in words."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(argument) for argument in arguments)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin is tuple:
        if len(arguments) != 2 or arguments[1] is not Ellipsis:
            return ", ".join(map(describe, arguments))
        return f"{_PLURALS.get(arguments[0], describe(arguments[0]))} separated by commas"
    names = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}
    return "none" if kind is type(None) else names.get(kind, getattr(kind, "__name__", str(kind)))


def show(value: Any) -> str:
    """A value on one line, however large it is."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


_PLURALS = {int: "integers", float: "numbers", str: "texts"}


def _require(holds: bool, value: Any) -> Any:
    if not holds:
        raise ValueError
    return value


def _is(one: Any, other: Any) -> bool:
    return one is other
