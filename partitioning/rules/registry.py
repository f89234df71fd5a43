"""The rule of every primitive, and the list of those that deliberately have none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..ir.program import Op
from .factor import Rule

#: From an op to its rule.
RuleOf = Callable[[Op], Rule]

_RULES: dict[str, RuleOf] = {}
_FAMILIES: dict[str, str] = {}
_SUMMARIES: dict[str, str] = {}
_WITHOUT: dict[str, str] = {}
#: Ops that have no rule of their own because propagation goes through their regions, or because
#: tracing puts their bodies in their place.
_STRUCTURE: dict[str, str] = {
    "scan": "propagation goes through the body; the scanned dimension is needed whole",
    "while": "propagation goes through condition and body; carry in is carry out",
    "cond": "propagation goes through every branch; the index is needed whole",
    "checkpoint": "propagation goes through the body",
    "jit": "inlined",
    "pjit": "inlined",
    "closed_call": "inlined",
    "core_call": "inlined",
    "composite": "inlined",
    "custom_vmap_call": "inlined",
    "custom_jvp_call": "inlined",
    "custom_vjp_call": "inlined",
    "custom_vjp_call_jaxpr": "inlined",
}
_CACHE: dict[Any, Rule] = {}


def register(names: str | Iterable[str], family: str, summary: str) -> Callable[[RuleOf], RuleOf]:
    """Registers the decorated function as the rule of one or several primitives.

    Args:
      names: primitive names.
      family: the heading under which the table lists them.
      summary: what tiles and what does not, for the table.

    Raises:
      ValueError: where a primitive already has a rule.
    """
    names = (names,) if isinstance(names, str) else tuple(names)
    _refuse_known(names)

    def add(rule: RuleOf) -> RuleOf:
        for name in names:
            _RULES[name] = rule
            _FAMILIES[name] = family
            _SUMMARIES[name] = summary
        return rule

    return add


def without_rule(names: Iterable[str], reason: str) -> None:
    """Lists primitives that deliberately have no rule: their operands are gathered."""
    names = tuple(names)
    _refuse_known(names)
    _WITHOUT.update(dict.fromkeys(names, reason))


def _refuse_known(names: tuple[str, ...]) -> None:
    for name in names:
        if listed(name) or names.count(name) > 1:
            raise ValueError(f"primitive {name!r} already has an entry; it cannot have two")


def rule_of(op: Op) -> Rule | None:
    """The rule of `op`, or None where its primitive has none."""
    make = _RULES.get(op.name)
    if make is None:
        return None
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
    return name in _RULES


def is_elementwise(name: str) -> bool:
    return _FAMILIES.get(name) == "elementwise"


def listed(name: str) -> bool:
    """Whether a primitive has a rule, is structure, or stands among those that deliberately have
    none.
    """
    return name in _RULES or name in _WITHOUT or name in _STRUCTURE


def rows() -> list[tuple[str, str, str]]:
    """(family, primitive, what tiles) of every registered primitive, sorted."""
    found = [(_FAMILIES[name], name, _SUMMARIES[name]) for name in _RULES]
    found += [("gathered", name, reason) for name, reason in _WITHOUT.items()]
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
