"""The step that a command line names: an example model's, or a function of the user's own."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from . import models


@dataclasses.dataclass(frozen=True)
class Step:
    """A step and what it is called with.

    Attributes:
      fn: for one device and the global batch.
      arguments: pytrees of `jax.ShapeDtypeStruct` or arrays.
      donated: names of the arguments that are given away; None: the state, which comes out again.
    """

    fn: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[str, ...] | None = None


def of_model(name: str, flags: Sequence[str]) -> Step:
    """The step of an example model, with the sizes among the flags.

    Raises:
      ValueError: no such model, field or value.
    """
    example = models.make(name, **_sizes(name, flags))
    return Step(example.update, (example.state_shapes, example.batch_shapes), ("state",))


def of_module(place: str) -> Step:
    """The step at "MODULE:NAME", whose module may be in the current directory.

    The name is a function without arguments that returns the step and then its arguments, or the
    step itself, where the module holds its arguments, as a tuple, as "NAME_arguments".

    Raises:
      ValueError: it cannot be imported, or is neither.
    """
    module_name, _, name = place.partition(":")
    here = str(pathlib.Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
        thing = getattr(module, name)
        made = _with_arguments(thing, getattr(module, f"{name}_arguments", None))
    except Exception as error:  # Whatever the user's module raises.
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{place} cannot be had: {type(error).__name__}: {why}") from error
    if made is None:
        raise ValueError(
            f"{place} is no step with its arguments: let it be a function without arguments that "
            f"returns (step, state, batch), or name the arguments of a step {name}_arguments; "
            "jax.ShapeDtypeStruct is enough"
        )
    fn, *arguments = made
    return Step(fn, tuple(arguments))


def _with_arguments(thing: Any, arguments: Any) -> tuple[Any, ...] | None:
    """The step and its arguments; None: they are not known."""
    if arguments is not None and callable(thing):
        return thing, *(arguments() if callable(arguments) else arguments)
    if not callable(thing) or inspect.signature(thing).parameters:
        return None
    found = thing()
    is_step = isinstance(found, tuple) and len(found) > 1 and callable(found[0])
    return found if is_step else None


def _sizes(model: str, rest: Sequence[str]) -> dict[str, Any]:
    """The config fields among the flags, by the type of their default."""
    config = models.make(model).config
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    sizes: dict[str, Any] = {}
    flags = list(rest)
    while flags:
        flag = flags.pop(0)
        name, equals, text = flag.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        name = f"num_{name}" if f"num_{name}" in fields and name not in fields else name
        if not flag.startswith("--") or name not in fields:
            raise ValueError(
                f"{model} has no field {flag!r}; its fields are {', '.join(sorted(fields))}"
            )
        default = fields[name]
        if isinstance(default, bool) and not equals and (not flags or flags[0].startswith("--")):
            sizes[name] = True
            continue
        if not equals:
            if not flags:
                raise ValueError(f"--{name} needs a value, e.g. --{name} {default}")
            text = flags.pop(0)
        sizes[name] = _value(name, text, default)
    return sizes


def _value(name: str, text: str, default: Any) -> Any:
    if isinstance(default, bool):
        if text.lower() not in ("true", "false", "1", "0"):
            raise ValueError(f"--{name} is true or false, not {text!r}")
        return text.lower() in ("true", "1")
    kind = type(default) if default is not None else float
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"--{name} is of type {kind.__name__}, not {text!r}") from None
