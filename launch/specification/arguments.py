"""Options of environments as the command line takes them: `--env.KEY VALUE`."""

from __future__ import annotations

import ast
import typing
from collections.abc import Mapping
from typing import Any

from ..errors import RequestError
from . import fields

_ELSEWHERE = {
    "id": "--env ID",
    "seed": "--seed",
    "num_envs": "--config.num_envs",
    "render_mode": "`troupe evaluate --video`",
}
"""Parameters of `environments.make` that are said in another way."""
_WORDS = {"true": True, "false": False, "none": None}


def parse(texts: Mapping[str, str]) -> dict[str, Any]:
    """Options of `environments.make` from texts, by name.

    Those that `make` names itself have its types. Any other is for the environment's own
    constructor: true, false, none, a number, a list, tuple or dict as Python writes it, or a text.

    Raises:
      RequestError: if a text is none of its option's type, or the option is said in another way.
    """
    if not texts:
        return {}
    from ... import environments

    kinds = typing.get_type_hints(environments.make)
    values = {}
    for name, text in texts.items():
        if name in _ELSEWHERE:
            raise RequestError(f"--env.{name} cannot be given; say it with {_ELSEWHERE[name]}.")
        kind = kinds.get(name)
        values[name] = _literal(text) if kind is None else _typed(name, kind, text)
    return values


def _typed(name: str, kind: Any, text: str) -> Any:
    try:
        return fields.Field(name, kind, None, "").parse(text)
    except RequestError:
        raise RequestError(
            f"--env.{name} is {text!r}; it must be {fields.describe(kind)}."
        ) from None


def _literal(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
