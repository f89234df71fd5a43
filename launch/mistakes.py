"""Messages of a mistake in an agent: one line that names it, where it is and what to do."""

from __future__ import annotations

import inspect
import pathlib
import re
import traceback
from collections.abc import Callable
from typing import Any

import jax

from .errors import RequestError

Nest = Any
_PACKAGE = pathlib.Path(__file__).resolve().parents[1]
_FLOORS = ("environments", "partitioning", "launch", "baselines")
_SLIPS = (TypeError, AttributeError, NameError, LookupError, ArithmeticError, AssertionError)
"""Errors of code, whose messages alone say nothing to users."""
_SHOWN = 4
"""Leaves of a nest that a message lists."""


class Mistake(RequestError):
    """Something of an agent is not as its interface says it must be."""


def attempt(what: str, function: Callable[..., Any], *arguments: Any, hint: str = "") -> Any:
    """Calls a function of the agent's.

    Args:
      what: is done, as a message begins: "the update cannot be traced".
      function: the one that is called.
      *arguments: of it.
      hint: what to know or to do about a failure, a sentence.

    Raises:
      Mistake: in place of whatever it raises, with the line of the user's where it was raised.
    """
    try:
        return function(*arguments)
    except (Mistake, NotImplementedError):
        raise
    except Exception as error:
        raise _mistake(what, error, hint) from error


def called(name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Calls what makes a part of a run; errors that say what is wrong pass.

    Args:
      name: of the function, for messages.
      function: the one that is called.
      *arguments, **options: of it.

    Raises:
      Mistake: if it makes None, or in place of an error that says nothing to users.
    """
    try:
        made = function(*arguments, **options)
    except _SLIPS as error:
        raise _mistake(f"{name} fails", error) from error
    if made is None:
        raise Mistake(f"{name} made None; it must return what it makes.")
    return made


def _mistake(what: str, error: Exception, hint: str = "") -> Mistake:
    reason = " ".join(str(error).split())
    reason = reason if len(reason) <= 300 else f"{reason[:297]}..."
    reason = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
    line = place(error)
    at = f" ({line})" if line else ""
    return Mistake(f"{what}: {reason}{at}.{f' {hint}' if hint else ''}")


def place(error: BaseException) -> str | None:
    """The innermost line of the user's own code on the way to an error: FILE:LINE in FUNCTION.

    Where all code is of this package, the innermost line of an agent.
    """
    own = agents = None
    for frame in traceback.extract_tb(error.__traceback__):
        path = pathlib.Path(frame.filename)
        said = f"{path.name}:{frame.lineno} in {frame.name}"
        if "site-packages" in path.parts or "dist-packages" in path.parts:
            continue
        if not path.exists() or path.is_relative_to(pathlib.Path(inspect.__file__).parent):
            continue
        inside = path.resolve().is_relative_to(_PACKAGE)
        floor = path.resolve().relative_to(_PACKAGE).parts[0] if inside else ""
        if floor == "agents":
            agents = said
        elif floor not in _FLOORS:
            own = said
    return own or agents


def describe(nest: Nest) -> str:
    """A nest of arrays, of shapes or of specs in a few words: "float32[4]"."""
    leaves = jax.tree_util.tree_flatten_with_path(nest)[0]
    if not leaves:
        return "nothing"
    words = [f"{jax.tree_util.keystr(path)} {leaf_text(leaf)}".strip() for path, leaf in leaves]
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more


def leaf_text(leaf: Any) -> str:
    """An array, a shape or a spec: "float32[4]"."""
    if not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    return f"{leaf.dtype}{[*leaf.shape]}"


def compare(what: str, found: Nest, expected: Nest, remedy: str, *, exact: bool = True) -> None:
    """Compares two nests of arrays, shapes or specs.

    Args:
      what: is found, as a message begins: "the state that step returns".
      found: as it is.
      expected: as it must be.
      remedy: what to do, a sentence.
      exact: whether dtypes must be the same, and not just of one kind.

    Raises:
      Mistake: where structure, a shape or a dtype differs, naming the first path that does.
    """
    ours, theirs = (dict(_named(nest)) for nest in (found, expected))
    lacking, extra = [n for n in theirs if n not in ours], [n for n in ours if n not in theirs]
    structure = jax.tree.structure(found) != jax.tree.structure(expected)  # type: ignore[operator]
    if lacking or extra or structure:
        words = [f"lacks {', '.join(lacking[:_SHOWN])}"] if lacking else []
        words += [f"has {', '.join(extra[:_SHOWN])} besides"] if extra else []
        if not words:
            words = [f"is a {jax.tree.structure(found)}, not a {jax.tree.structure(expected)}"]
        raise Mistake(f"{what} has another structure: it {' and '.join(words)}. {remedy}")
    for name, leaf in ours.items():
        other = theirs[name]
        same = leaf.dtype == other.dtype if exact else _kind(leaf.dtype) == _kind(other.dtype)
        if leaf.shape != other.shape or not same:
            at = f" at {name}" if len(ours) > 1 else ""
            raise Mistake(
                f"{what} is {leaf_text(leaf)}{at}; it must be {leaf_text(other)}. {remedy}"
            )


def program_text(function: Callable[..., Any], *shapes: Nest) -> tuple[str, list[Any]]:
    """Traces a function; returns its program as text, and the constants in it."""
    # Another function each time: jax keeps what it traced of one.
    closed = jax.make_jaxpr(lambda *arguments: function(*arguments))(*shapes)
    return re.sub(r" at 0x[0-9a-f]+", "", str(closed.jaxpr)), list(closed.consts)


def draws(function: Callable[..., Any], *shapes: Nest) -> bool:
    """True if a function, traced on these shapes, draws random numbers."""

    def within(jaxpr: Any) -> bool:
        for equation in jaxpr.eqns:
            if equation.primitive.name in ("random_bits", "random_gamma", "threefry2x32"):
                return True
            for parameter in equation.params.values():
                for inner in parameter if isinstance(parameter, tuple | list) else (parameter,):
                    inner = getattr(inner, "jaxpr", inner)
                    if hasattr(inner, "eqns") and within(inner):
                        return True
        return False

    return within(jax.make_jaxpr(function)(*shapes).jaxpr)


def _named(nest: Nest) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_flatten_with_path(nest)[0]
    return [(jax.tree_util.keystr(path) or "it", leaf) for path, leaf in leaves]


def _kind(dtype: Any) -> str:
    return {"u": "i"}.get(kind := getattr(dtype, "kind", str(dtype)), kind)
