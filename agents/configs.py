"""Checks that configs make at construction: each message names the value and what is allowed."""

from __future__ import annotations

from typing import Any


def require(config: Any, **bounds: tuple[float | None, float | None]) -> None:
    """Checks that fields lie within closed bounds; a bound of None is open, a value of None passes.

    Raises:
      ValueError: naming the first field that does not, its value and its bounds.
    """
    for name, (low, high) in bounds.items():
        value = getattr(config, name)
        if value is None:
            continue
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            allowed = " and ".join(
                part
                for part in (
                    f"at least {low}" if low is not None else "",
                    f"at most {high}" if high is not None else "",
                )
                if part
            )
            raise ValueError(f"{name} is {value}; it must be {allowed}.")


def require_choice(config: Any, name: str, choices: tuple[str, ...]) -> None:
    """Checks that a field is one of the choices."""
    value = getattr(config, name)
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(choices)}.")
