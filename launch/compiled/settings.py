"""Numbers of an agent's config in which runs of one program differ."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ...agents.builder import Builder
from ..errors import RequestError
from ..experiment import Experiment

if TYPE_CHECKING:
    from ...agents.programs.whole_loop import WholeLoop
    from ...environments import EnvironmentSpec
    from .program import Settings

_APART = "train these one after another, or with --parallel"
_MAY_DIFFER = ("seed", "callbacks", "evaluation", "checkpointing")
_NOT_COMPARED = ("builder", "environment_factory", "network_factory")
"""Fields that are compared elsewhere, or are functions, which cannot be."""
_SHAPING = ("num_envs", "steps_per_dispatch")
"""Fields of every config that decide the shapes of a loop."""


def differing(experiments: Sequence[Experiment]) -> tuple[str, ...]:
    """Returns the fields of the config in which experiments differ, all of them numbers.

    Raises:
      RequestError: if they differ in something else besides seeds, naming it.
    """
    first, *others = experiments
    names = []
    for field in dataclasses.fields(Experiment):
        if field.name in _MAY_DIFFER + _NOT_COMPARED:
            continue
        values = [getattr(one, field.name) for one in experiments]
        if any(value != values[0] for value in values[1:]):
            raise RequestError(
                f"the runs of one program differ in {field.name}; {_APART} (or in programs of "
                "their own)."
            )
    for other in others:
        if type(other.builder) is not type(first.builder):
            raise RequestError(f"the runs of one program are of several agents; {_APART}.")
    for field in dataclasses.fields(first.builder.config):
        values = [getattr(one.builder.config, field.name) for one in experiments]
        if all(value == values[0] for value in values[1:]):
            continue
        if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in values):
            raise RequestError(
                f"config.{field.name} is no number in every run, so that they cannot be one "
                f"program; {_APART}."
            )
        if field.name in _SHAPING:
            raise RequestError(f"config.{field.name} is that of a whole program; {_APART}.")
        names.append(field.name)
    return tuple(names)


def require_same_replay(experiments: Sequence[Experiment], spec: EnvironmentSpec) -> None:
    """Raises RequestError where the runs' replays are not alike, naming what they differ in."""
    first, *others = (one.builder.make_replay_spec(spec) for one in experiments)
    for other in others:
        for field in dataclasses.fields(first):
            one, another = getattr(first, field.name), getattr(other, field.name)
            if one != another:
                raise RequestError(
                    f"the runs' replays differ in their {field.name} ({one}, and {another}), so "
                    f"that they cannot be one program; {_APART}."
                )


def values(experiments: Sequence[Experiment], names: Sequence[str]) -> Settings:
    """Returns the values [S] of fields: float32, or int32 where all are whole numbers."""
    found = {}
    for name in names:
        column = [getattr(one.builder.config, name) for one in experiments]
        whole = all(isinstance(one, int) for one in column)
        found[name] = jnp.asarray(np.asarray(column), jnp.int32 if whole else jnp.float32)
    return found


def applied(builder: Builder[Any, Any], settings: Settings) -> Builder[Any, Any]:
    """Returns a builder whose config has these values, which may be traced and are not checked."""
    if not settings:
        return builder
    config = copy.copy(builder.config)
    for name, value in settings.items():
        object.__setattr__(config, name, value)  # The numbers themselves were checked.
    changed = copy.copy(builder)
    changed.config = config
    return changed


def require_program(
    make: Callable[[Settings, str | None], WholeLoop], settings: Settings, num_envs: int
) -> None:
    """Traces the loop of one run with settings that are not known.

    Raises:
      RequestError: if one decides what the program is, or changes nothing in it.
    """
    for name, column in settings.items():
        try:
            used = _is_used(lambda value: make({name: value}, None), column[0], num_envs)  # noqa: B023
        except (jax.errors.JAXTypeError, TypeError) as error:
            raise RequestError(
                f"config.{name} decides what the program computes, not only with which number; "
                f"{_APART}."
            ) from error
        if not used:
            raise RequestError(
                f"config.{name} is no number that the program computes with; {_APART}."
            )


def _is_used(make: Callable[[Any], WholeLoop], value: jax.Array, num_envs: int) -> bool:
    def run(value: jax.Array, keys: jax.Array, key: jax.Array) -> Any:
        loop = make(value)
        number = jnp.int32(1)
        return loop.advance(loop.init(keys, key, key), key, number, number)

    key = jax.random.key(0)
    jaxpr = jax.make_jaxpr(run)(value, jax.random.split(key, num_envs), key).jaxpr
    return any(one is jaxpr.invars[0] for equation in jaxpr.eqns for one in equation.invars)
