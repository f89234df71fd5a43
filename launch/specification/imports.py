"""Places that a thing of the user's code is imported from, as values of JSON, and back."""

from __future__ import annotations

import ast
import functools
import importlib
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from ..errors import RequestError
from . import origins

_PLAIN = (str, int, float, bool, type(None))


def where(thing: Any) -> dict[str, Any] | None:
    """Returns what `find` finds a function or class by; None: it cannot be imported.

    A lambda, a function within another, and what a script defines that does something when it is
    imported (it has no `if __name__ == "__main__"`) cannot be. A `functools.partial` of what can,
    with plain values, can.
    """
    if isinstance(thing, functools.partial):
        inner = where(thing.func)
        values = [*thing.args, *thing.keywords.values()]
        if inner is None or not all(isinstance(value, _PLAIN) for value in values):
            return None
        return {**inner, "args": list(thing.args), "keywords": dict(thing.keywords)}
    name, module = getattr(thing, "__qualname__", ""), sys.modules.get(_module_name(thing) or "")
    file = getattr(module, "__file__", None)
    if module is None or file is None or "<" in name or _member(module, name) is not thing:
        return None
    dotted = _module_name(thing) or ""
    if dotted == "__main__":
        spec = getattr(module, "__spec__", None)  # Of `python -m`; a script has none.
        if spec is None and not _is_guarded(pathlib.Path(file)):
            return None
        dotted = pathlib.Path(file).stem if spec is None else spec.name
    path = pathlib.Path(file).resolve()
    above = dotted.count(".") + (path.name == "__init__.py")
    return {"import": f"{dotted}:{name}", "path": str(path.parents[above])}


def find(place: Mapping[str, Any]) -> Any:
    """The inverse of `where`.

    Raises:
      RequestError: if there is nothing of that name, or it cannot be imported.
    """
    dotted, _, name = place["import"].partition(":")
    try:
        origins.reach(place["import"], {dotted: place["path"]})
        thing = _member(importlib.import_module(dotted), name)
        if thing is None:
            raise AttributeError(f"it has no {name}")
    except Exception as error:  # Whatever the user's module raises.
        raise RequestError(
            f"{place['import']} cannot be imported ({type(error).__name__}: {error}); it was in "
            f"{place['path']} when the run began."
        ) from error
    if "keywords" in place:
        return functools.partial(thing, *place["args"], **place["keywords"])
    return thing


def _is_guarded(script: pathlib.Path) -> bool:
    """True if a script does its work only where it is run, not where it is imported."""
    try:
        statements = ast.parse(script.read_text()).body
    except (OSError, ValueError, SyntaxError):  # Typed in, or no script at all.
        return False
    tests = [ast.unparse(one.test) for one in statements if isinstance(one, ast.If)]
    return "__name__ == '__main__'" in tests


def _module_name(thing: Any) -> str | None:
    return getattr(thing, "__module__", None)


def _member(module: Any, name: str) -> Any:
    """Returns what a dotted name means in a module; None: nothing."""
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if name else None
