"""Operations on few numbers gathered, for XLA's CPU compiler of jax 0.6.

A kernel on 64 numbers takes 0.4 us, most of them to start it. Where more than eight wait to be run,
as those of an optimizer do once the norm of all gradients is known, half of them are handed to
another thread, which takes 30 us to wake and as long to go back to sleep. Gathered into kernels, or
else branches, they are fewer. In a run of PPO on CartPole an update, 20 times 140 operations, took
6.6 to 7.2 ms and takes 5.3, run in turn (two cores; see `dispatch`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax import lax

from . import calls

_FEW_NUMBERS = 512
_MANY_NUMBERS = 2**15  # With which it is worth while to share out operations.
_FEWEST = 3  # Equations to gather.
_MOST_WORK = 4096  # Numbers to compute. With four steps for each XLA shares out nothing.


def is_small(program: Any) -> bool:
    """Whether a jaxpr, with those in it, has no array that it is worth while to share out."""
    return all(
        _largest(equation) < _MANY_NUMBERS and all(map(is_small, programs_in(equation)))
        for equation in program.eqns
    )


def programs_in(equation: Any) -> list[Any]:
    """The jaxprs of its loop, branches or call."""
    parts = list(equation.params.values())
    leaves = jax.tree.leaves(parts, is_leaf=lambda part: hasattr(part, "eqns"))
    return [getattr(leaf, "jaxpr", leaf) for leaf in leaves if hasattr(leaf, "eqns")]


def gathered(program: Any) -> list[Any]:
    """A program's equations, those on few numbers in calls.

    An equation's level is how often the way to it leaves the small ones and comes back to them, at
    most. So those of one level need none of each other that is not small, and can be computed
    together, before what is not small of their level.
    """
    largest = max((_largest(equation) for equation in program.eqns), default=0)
    # A loop of nothing else XLA makes a kernel of by itself.
    if program.effects or not _FEW_NUMBERS < largest < _MANY_NUMBERS:
        return program.eqns
    works = _works(program)
    used, users = _used(program, works)
    levels: dict[int, tuple[list[Any], list[Any]]] = {}
    places: dict[Any, tuple[int, bool]] = {}
    for equation in used:
        is_few = works[id(equation)] is not None
        before = [places[v] for v in equation.invars if calls.is_var(v) and v in places]
        level = max((at + (is_few and not was_few) for at, was_few in before), default=0)
        levels.setdefault(level, ([], []))[0 if is_few else 1].append(equation)
        places.update((v, (level, is_few)) for v in equation.outvars)
    equations: list[Any] = []
    for level in sorted(levels):
        few, others = levels[level]
        for part in _parts(few, works):
            equations += _together(part, users)
        equations += others
    return equations


Works = dict[int, int | None]
"""By the identity of an equation, the numbers that it computes; None where it is not gathered."""

Users = dict[Any, set[int]]
"""By variable, the identities of what reads it: equations, or the program that gives it."""


def _used(program: Any, works: Works) -> tuple[list[Any], Users]:
    """A program's equations but those to be gathered that it does without, and what uses what."""
    used: list[Any] = []
    users: Users = {v: {id(program)} for v in program.outvars if calls.is_var(v)}
    for equation in reversed(program.eqns):
        if works[id(equation)] is None or not users.keys().isdisjoint(equation.outvars):
            used.append(equation)
            for v in filter(calls.is_var, equation.invars):
                users.setdefault(v, set()).add(id(equation))
    return used[::-1], users


def _parts(equations: list[Any], works: Works) -> Iterator[list[Any]]:
    """Equations to be gathered, in their order, as parts of bounded work."""
    part: list[Any] = []
    total = 0
    for equation in equations:
        work = works[id(equation)] or 0
        if total + work > _MOST_WORK:
            yield part
            part, total = [], 0
        part.append(equation)
        total += work
    yield part


def _together(equations: list[Any], users: Users) -> list[Any]:
    """A call in place of equations, where they are enough to be worth it."""
    inside = set(map(id, equations))
    made = dict.fromkeys(v for equation in equations for v in equation.outvars)
    needed = [v for equation in equations for v in equation.invars if calls.is_var(v)]
    read = [v for v in dict.fromkeys(needed) if v not in made]
    given = [v for v in made if users.get(v, inside) - inside]
    if len(equations) < _FEWEST or not given:
        return equations
    compute = calls.evaluation(equations, read, given)
    fits = calls.needs_all(compute, (v.aval for v in read))
    place = calls.one_kernel if fits else calls.in_branch
    return [calls.call(functools.partial(place, compute), read, given)]


def _largest(equation: Any) -> int:
    """Numbers of the largest array that it reads or makes."""
    return max((v.aval.size for v in (*equation.invars, *equation.outvars)), default=0)


def _works(program: Any) -> Works:
    """What is known before the program runs is not gathered."""
    known: set[Any] = set()
    works: Works = {}
    for equation in program.eqns:
        is_known = all(not calls.is_var(v) or v in known for v in equation.invars)
        known.update(equation.outvars if is_known else ())
        works[id(equation)] = None if is_known else _work(equation)
    return works


def _work(equation: Any) -> int | None:
    """Numbers that an equation on few of them computes; None where it is none of these."""
    operands = (*equation.invars, *equation.outvars)
    if _largest(equation) > _FEW_NUMBERS or any(v.aval.dtype not in _DTYPES for v in operands):
        return None
    if calls.is_call(equation):
        works = _works(equation.params["jaxpr"].jaxpr).values()
        return None if None in works else sum(filter(None, works))
    if equation.primitive is lax.integer_pow_p and equation.params["y"] not in _POWERS:
        return None
    return _largest(equation) if equation.primitive in _ARITHMETIC else None


_POWERS = (-2, -1, 1, 2, 3, 4)

_DTYPES = {np.dtype(np.float32), np.dtype(bool)}

_ARITHMETIC = {
    *calls.NEED_ALL,
    *calls.COMPARISONS,
    lax.and_p,
    lax.convert_element_type_p,
    lax.integer_pow_p,
    lax.not_p,
    lax.or_p,
    lax.select_n_p,
    lax.sign_p,
}
