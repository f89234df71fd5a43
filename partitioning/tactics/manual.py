"""The tactic of a person who knows which arrays to tile, and names for intermediates."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from ..decide.actions import Action, Choice, Context, What
from ..ir.program import Op, Program, Value
from ..rules import traits_of


def tag(x: Any, name: str) -> Any:
    """Names an intermediate, so that a :class:`Manual` tactic can point at it. The identity
    otherwise.

    Args:
      x: an array or a pytree of arrays, which then all carry the name.
      name: what `Manual`'s keys may match.
    """
    return jax.tree_util.tree_map(lambda leaf: checkpoint_name(leaf, name), x)


@dataclasses.dataclass(frozen=True)
class Manual:
    """Tiles arrays that a person names.

    Attributes:
      name: what the plan calls it.
      inputs: a mapping from argument names, glob patterns over pytree paths ("state/params/**/w";
        `*` stays within a part, `**` crosses parts), tags, or predicates over (path, leaf), to a
        dimension, REPLICATED, FIRST_DIVISIBLE or UNKNOWN. Where several match an array, the last
        one counts. Or a function from (path, leaf) to any of these or None; a leaf has shape and
        dtype.
      axis: the mesh axis.
    """

    name: str
    inputs: Mapping[Any, Any] | Callable[[str, Value], Any]
    axis: str

    def __post_init__(self) -> None:
        if not callable(self.inputs):
            for key, what in self.inputs.items():
                if not isinstance(what, Choice) and (
                    isinstance(what, bool) or not isinstance(what, int)
                ):
                    raise TypeError(
                        f"tactic {self.name!r}: {key!r} has {what!r}; give a dimension (an int), "
                        f"pt.REPLICATED, "
                        "pt.FIRST_DIVISIBLE or pt.UNKNOWN"
                    )

    def actions(self, context: Context) -> list[Action]:
        """The actions on every array that a key names.

        Raises:
          ValueError: a pattern that matches nothing.
        """
        named = [(v.path, v) for v in context.inputs]
        named += [(name, v) for name, v in tags(context.graph.program) if v.shape]
        if callable(self.inputs):
            asked = ((v, self.inputs(path, v)) for path, v in named)
            return [Action(v, self.axis, what, True) for v, what in asked if what is not None]
        chosen: dict[Value, What] = {}
        for key, what in self.inputs.items():
            matched = [v for path, v in named if _matches(key, path, v)]
            if not matched:
                raise ValueError(self._no_match(key, [path for path, _ in named]))
            for value in matched:
                chosen.pop(value, None)
                chosen[value] = what
        return [Action(v, self.axis, what, True) for v, what in chosen.items()]

    def _no_match(self, key: Any, paths: list[str]) -> str:
        if callable(key):
            return f"tactic {self.name!r}: the predicate {key!r} matches none of {len(paths)} paths"
        names = list(dict.fromkeys([p.split("/")[0] for p in paths] + paths))
        near = difflib.get_close_matches(key, names, n=4, cutoff=0.4) or names[:4]
        return (
            f"tactic {self.name!r}: {key!r} matches no argument, path or tag; near misses: "
            f"{', '.join(near)} "
            f"({len(paths)} paths in all)"
        )


@dataclasses.dataclass(frozen=True)
class Hints:
    """Follows the hints in the step's own code: `jax.lax.with_sharding_constraint`.

    Without this tactic they decide nothing; a plan says which were not followed.

    Attributes:
      axis: the mesh axis; hints over other axes are left alone.
      name: what the plan calls it.
    """

    axis: str
    name: str = "hints"

    def actions(self, context: Context) -> list[Action]:
        """Tiles every array that a hint spreads over the axis, but those that earlier tactics have
        placed otherwise.

        Raises:
          ValueError: where no hint names the axis.
        """
        hinted = hints(context.graph.program)
        found = [
            (op.outputs[0], dim)
            for op in hinted
            for dim, axes in enumerate(op.params["layout"])
            if self.axis in axes
        ]
        if not found:
            named = sorted({a for op in hinted for axes in op.params["layout"] for a in axes})
            there = f"they name {', '.join(named)}" if named else "there is none that names an axis"
            raise ValueError(
                f"tactic {self.name!r}: no with_sharding_constraint of the step names axis "
                f"{self.axis!r}; {there}"
            )
        state = context.state
        return [
            Action(value, self.axis, dim, firm=True)
            for value, dim in found
            if self.axis not in state.tiles.get(value, {}) and state.divides(value, dim, self.axis)
        ]


def hints(program: Program) -> list[Op]:
    """The hints of a program of how an array should lie; `layout` is one of their params."""
    return [op for op in program.walk() if traits_of(op.name).tag and "layout" in op.params]


def tags(program: Program) -> list[tuple[str, Value]]:
    """Maps the names of intermediates to their values."""
    return [(op.params["name"], op.outputs[0]) for op in program.walk() if traits_of(op.name).tag]


def _matches(key: Any, path: str, value: Value) -> bool:
    if callable(key):
        return bool(key(path, value))
    return (
        path == key or path.startswith(key + "/") or path_pattern(key).fullmatch(path) is not None
    )


@functools.lru_cache(maxsize=1000)
def path_pattern(pattern: str) -> re.Pattern[str]:
    """A path glob as a regular expression: `**` any parts or none, `*` and `?` within a part."""
    text, i = "", 0
    while i < len(pattern):
        if pattern.startswith("**/", i):
            text, i = text + "(?:.*/)?", i + 3
        elif pattern.startswith("**", i):
            text, i = text + ".*", i + 2
        elif pattern[i] == "*":
            text, i = text + "[^/]*", i + 1
        elif pattern[i] == "?":
            text, i = text + "[^/]", i + 1
        else:
            text, i = text + re.escape(pattern[i]), i + 1
    return re.compile(text)
