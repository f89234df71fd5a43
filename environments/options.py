"""Arguments that environments are made with, checked: numbers of another kind than meant pass far
into an environment before they fail, if they do."""

from __future__ import annotations

import operator
from typing import Any

from .errors import InvalidOptionError


def integer(name: str, value: Any, low: int, high: int) -> int:
    """The value as a Python int.

    Raises:
      InvalidOptionError: if it is no integer, or not within the bounds.
    """
    try:
        found = operator.index(value)
    except TypeError:
        found = low - 1
    if not low <= found <= high or isinstance(value, bool):
        raise InvalidOptionError(
            f"{name} must be an integer of at least {low} and at most {high}, got {value!r}"
        )
    return found


def optional_integer(name: str, value: Any, low: int, high: int) -> int | None:
    """As `integer`; None passes."""
    return None if value is None else integer(f"{name}, where it is not None,", value, low, high)


def seconds(name: str, value: Any, most: float, otherwise: str = "") -> float:
    """The value as a float.

    Args:
      otherwise: in the error, what the caller takes in place of a number.

    Raises:
      InvalidOptionError: if it is no number above 0 and at most `most`.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise InvalidOptionError(
            f"{name} must be a number of seconds above 0 and at most {most:g}{otherwise}, "
            f"got {value!r}"
        )
    return float(value)


def choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raises InvalidOptionError where the value is none of the choices."""
    if value not in choices:
        allowed = ", ".join(map(str, choices))
        raise InvalidOptionError(f"{name} must be one of {allowed}, got {value!r}")
