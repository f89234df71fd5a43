"""One value per primitive: its rule, or why it has none, and its traits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ..ir.program import Op, Value
from .factor import Rule
from .traits import TABLE, Traits, traits_of

#: From an op to its rule.
RuleOf = Callable[[Op], Rule]


class Primitive(NamedTuple):
    """The partitioner's entry for a primitive.

    Attributes:
      rule: from an op to its rule; None where it deliberately has none, so that its operands are
        gathered.
      family: the heading under which the table lists it.
      summary: what tiles and what does not, or why it has no rule.
      traits: its other properties.
    """

    rule: RuleOf | None
    family: str
    summary: str
    traits: Traits


_PRIMITIVES: dict[str, Primitive] = {}
_INLINED = """
    jit pjit closed_call core_call composite custom_vmap_call custom_jvp_call custom_vjp_call
    custom_vjp_call_jaxpr custom_linear_solve
"""
#: Ops that have no rule of their own because propagation goes through their regions, or because
#: tracing puts their bodies in their place.
_STRUCTURE: dict[str, str] = {
    "scan": "propagation goes through the body; the scanned dimension tiles where turns are "
    "independent, and what they add up reduces by sum; elsewhere it is needed whole",
    "while": "propagation goes through condition and body; carry in is carry out",
    "cond": "propagation goes through every branch; the index is needed whole",
    "checkpoint": "propagation goes through the body",
    **dict.fromkeys(_INLINED.split(), "inlined"),
}
_CACHE: dict[Any, Rule] = {}


def register(names: str | Iterable[str], family: str, summary: str) -> Callable[[RuleOf], RuleOf]:
    """Registers the decorated function as the rule of one or several primitives.

    Args:
      names: primitive names, in one string or several.
      family: the heading under which the table lists them.
      summary: what tiles and what does not, for the table.

    Raises:
      ValueError: where a primitive already has a rule, or has no traits.
    """
    names = _checked(names)

    def add(rule: RuleOf) -> RuleOf:
        for name in names:
            _PRIMITIVES[name] = Primitive(rule, family, summary, TABLE[name])
        return rule

    return add


def without_rule(names: str | Iterable[str], reason: str) -> None:
    """Lists primitives that deliberately have no rule: their operands are gathered.

    Raises:
      ValueError: as `register` does.
    """
    for name in _checked(names):
        _PRIMITIVES[name] = Primitive(None, "gathered", reason, TABLE[name])


def _checked(names: str | Iterable[str]) -> tuple[str, ...]:
    names = tuple(names.split() if isinstance(names, str) else names)
    for name in names:
        if listed(name) or names.count(name) > 1:
            raise ValueError(f"primitive {name!r} already has an entry; it cannot have two")
        if name not in TABLE:
            raise ValueError(
                f"primitive {name!r} has no traits; give it a row in partitioning/rules/traits.py"
            )
    return names


def rule_of(op: Op) -> Rule | None:
    """The rule of `op`, or None where its primitive has none."""
    known = _PRIMITIVES.get(op.name)
    if known is None or known.rule is None:
        return None
    make = known.rule
    try:
        key = (
            op.name,
            tuple([v.shape for v in op.inputs]),
            tuple([v.shape for v in op.outputs]),
            op.inputs[0].dtype if op.inputs else None,
            tuple(op.params.items()),
        )
        rule = _CACHE.get(key)
    except TypeError:  # a param that cannot be hashed
        return make(op)
    if rule is None:
        if len(_CACHE) > 50_000:
            _CACHE.clear()
        rule = _CACHE[key] = make(op)
    return rule


def has_rule(name: str) -> bool:
    return name in _PRIMITIVES and _PRIMITIVES[name].rule is not None


def is_zero(value: Value, makers: Mapping[Value, Op]) -> bool:
    """True if an array is zeros: a literal zero, through ops that keep zeros."""
    op = makers.get(value)
    while op is not None and len(op.inputs) == 1 and traits_of(op.name).keeps_zeros:
        value = op.inputs[0]
        op = makers.get(value)
    return value.data is not None and value.size == 1 and not value.data


def listed(name: str) -> bool:
    """True if a primitive has a rule, is structure, or stands among those that deliberately have
    none.
    """
    return name in _PRIMITIVES or name in _STRUCTURE


def rows() -> list[tuple[str, str, str]]:
    """(family, primitive, what tiles) of every registered primitive, sorted."""
    found = [(known.family, name, known.summary) for name, known in _PRIMITIVES.items()]
    found += [("structure", name, text) for name, text in _STRUCTURE.items()]
    return sorted(found)


def table() -> str:
    """The registry as a Markdown table, one row per family and summary."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for family, name, summary in rows():
        grouped.setdefault((family, summary), []).append(f"`{name}`")
    lines = ["| family | primitives | what tiles |", "|---|---|---|"]
    lines += [
        f"| {family} | {', '.join(names)} | {text} |" for (family, text), names in grouped.items()
    ]
    return "\n".join(lines) + "\n"
