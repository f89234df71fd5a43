"""The fields of a config as the command line needs them: type, default and docstring of each."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import re
import textwrap
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...agents import other_names
from ...agents.bounds import conform, describe, show
from ..errors import RequestError


@dataclasses.dataclass(frozen=True)
class Field:
    """One field of a config."""

    name: str
    kind: Any
    """Its type."""
    default: Any
    doc: str

    def parse(self, text: str) -> Any:
        """The value that a text on the command line stands for.

        Raises:
          RequestError: if the text is none of the field's type.
        """
        try:
            return _parse(self.kind, text.strip())
        except ValueError:
            raise self._refused(text) from None

    def take(self, value: Any) -> Any:
        """A value of Python's or JSON's as the field has it: lists stand for tuples.

        Raises:
          RequestError: if it is none of the field's type.
        """
        if isinstance(value, str):
            return self.parse(value)
        try:
            return conform(self.kind, value)
        except ValueError:
            raise self._refused(value) from None

    def _refused(self, value: Any) -> RequestError:
        # Where other libraries take a function of the time.
        schedule = (
            " --config.learning_rate_steps N lets it fall; --config.learning_rate_schedule: how."
        )
        hint = schedule if self.name == "learning_rate" else ""
        return RequestError(
            f"--config.{self.name} is {show(value)}; it must be {describe(self.kind)}.{hint}"
        )


@functools.cache
def fields(config_class: type) -> dict[str, Field]:
    """The fields of a frozen dataclass, in the order of the class.

    A field's documentation is the string below it, in the class or the one it inherits it from.
    """
    hints = typing.get_type_hints(config_class)
    docs: dict[str, str] = {}
    for base in reversed(config_class.__mro__):
        if dataclasses.is_dataclass(base):
            docs |= _docstrings(base)
    found = {}
    for field in dataclasses.fields(config_class):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        found[field.name] = Field(field.name, hints[field.name], default, docs.get(field.name, ""))
    return found


def make(config_class: type, overrides: Mapping[str, Any]) -> Any:
    """A config with some fields set.

    Args:
      config_class: a frozen dataclass.
      overrides: values by name of the field; texts are parsed where the field is none.

    Raises:
      RequestError: if there is no such field, listing near names, or its value cannot be.
    """
    known = fields(config_class)
    values = {}
    for name, value in overrides.items():
        if name not in known:
            near = other_names.find_fields(name, known)
            near = near or difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(known)}."
            if name in other_names.ELSEWHERE:
                hint = f"in its place: {other_names.ELSEWHERE[name]}."
            raise RequestError(f"{config_class.__name__} has no field {name!r}; {hint}")
        values[name] = known[name].take(value)
    try:
        return config_class(**values)
    except (TypeError, ValueError) as error:
        raise RequestError(_with_flags(str(error), known)) from error


def _with_flags(message: str, known: Collection[str]) -> str:
    """Writes fields as the flags that set them, in a message of a config's own.

    Names of one word are words of English too: only at the beginning are they those of a field.
    """

    def flag(found: re.Match[str]) -> str:
        name = found.group()
        is_field = name in known and ("_" in name or not found.start())
        return f"--config.{name}" if is_field else name

    return re.sub(r"(?<![\w.-])[A-Za-z_]\w*", flag, message)


def text(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(map(text, value))
    return str(value)


_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _parse(kind: Any, text: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if type(None) in arguments and text.lower() == "none":
            return None
        # Narrow types first: "1" is an int of int | float, and everything is a str.
        for argument in sorted(arguments, key=_breadth):
            try:
                return _parse(argument, text)
            except ValueError:
                continue
        raise ValueError
    if origin is typing.Literal:
        return _choose({str(argument): argument for argument in arguments}, text)
    if origin is tuple:
        items = [item.strip() for item in text.strip("()[]").split(",") if item.strip()]
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_parse(arguments[0], item) for item in items)
        if len(items) != len(arguments):
            raise ValueError
        return tuple(
            _parse(argument, item) for argument, item in zip(arguments, items, strict=True)
        )
    if kind is bool:
        return _choose(_TRUTHS, text.lower())
    if kind is int:
        return _integer(text)
    if kind in (float, str):
        return kind(text)
    raise ValueError


def _choose(choices: Mapping[str, Any], text: str) -> Any:
    if text not in choices:
        raise ValueError
    return choices[text]


def _integer(text: str) -> int:
    """Takes 100000, 100_000 and 1e5."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise ValueError from None
        return int(number)


def _breadth(kind: Any) -> int:
    order: Sequence[Any] = (type(None), bool, int, float)
    return order.index(kind) if kind in order else len(order) + (kind is str)


def _docstrings(config_class: type) -> dict[str, str]:
    """The string below each annotated name of a class body."""
    try:
        source = textwrap.dedent(inspect.getsource(config_class))
    except (OSError, TypeError):  # Made at run time, or shipped without source.
        return {}
    (body,) = (node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    found = {}
    for statement, following in itertools.pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[statement.target.id] = " ".join(following.value.value.split())
    return found
