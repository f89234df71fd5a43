"""Operations on few numbers gathered, for XLA's CPU compiler of jax 0.6.

It makes a kernel of every operation, or fusion of some, and one on 64 numbers takes 0.4 us, most of
them to start it. Where more than eight wait to be run, as those of an optimizer do once the norm of
all gradients is known, half of them are handed to another thread, which takes 30 us to wake and as
long to go back to sleep. An update of PPO on CartPole, 20 times 140 operations, took 6.9 ms in a
run and takes 5.9 with them gathered (two cores).

**In a branch** many are one that waits. Its operations are still kernels, one after another.

**In one kernel** they are quicker. XLA makes one of a call that says of itself that it is small and
not to be written out; but it ends the process where something in it is to be shared out among
threads, and it did where a call of MuZero's gave back what it was given, reshaped. So this is for
single results that are computed, of a size that leaves no doubt. What XLA shares out goes by an
estimate (`DefaultCostModel` in its `parallel_task_assignment.cc`): of operations, or fusions, that
compute no more numbers than they read and write bytes, those of 512 KiB; others far sooner.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend import core as jex_core

_FEW_NUMBERS = 512
_MANY_NUMBERS = 2**15  # With which it is worth while to share out operations.
_SHARED_OUT = 2**17  # Numbers of 32 bits in 512 KiB.
_FEWEST, _MOST = 3, 48  # Equations to gather.


def one_kernel(compute: Callable[..., Any], *operands: jax.Array) -> Any:
    """What is computed of the operands, by a kernel of its own; to be traced.

    It must be an array that is not one of the operands, nor one in another shape, and small; see
    `is_one_thread`.
    """
    with set_xla_metadata(inlineable="false", xla_cpu_small_call="true"):
        return jax.jit(compute)(*operands)


def is_one_thread(given: Any, read: Iterable[Any], steps: int) -> bool:
    """Whether XLA computes an array in one thread, and what it might copy for that.

    Args:
      given: its shape and dtype.
      read: those of the arrays that it is made of, number by number or by products with vectors.
      steps: in which a number of it is computed at most, however XLA does it; not those of
        products, which are not shared out.
    """
    read = list(read)
    sizes = [given.size, *(x.size for x in read)]
    if any(np.dtype(x.dtype).itemsize != 4 for x in (given, *read)):
        return False
    as_large = sum(size >= given.size for size in sizes)
    return sum(sizes) + max(sizes) < _SHARED_OUT and steps <= 4 * as_large


def in_branch(compute: Callable[..., Any], *operands: jax.Array) -> Any:
    """What is computed of the operands, in a branch; to be traced.

    Both branches are the same, and which is taken is known when the program runs: XLA keeps them.
    """
    number = min(operands, key=lambda x: x.size).reshape(-1)[0]
    return lax.cond(number > 0, compute, compute, *operands)


def evaluation(
    equations: Iterable[Any], read: list[Any], given: list[Any]
) -> Callable[..., list[jax.Array]]:
    """What computes the variables `given` from values of the variables `read`, by equations.

    Calls among them are written out: XLA makes no kernel of what has some in it.
    """

    def compute(*values: jax.Array) -> list[jax.Array]:
        known = dict(zip(read, values, strict=True))

        def value(atom: Any) -> Any:
            return known[atom] if is_var(atom) else atom.val

        for equation in equations:
            operands = map(value, equation.invars)
            if _is_call(equation):
                closed = equation.params["jaxpr"]
                inner, read_inside = closed.jaxpr, [*closed.jaxpr.constvars, *closed.jaxpr.invars]
                write_out = evaluation(inner.eqns, read_inside, inner.outvars)
                made = write_out(*closed.consts, *operands)
            else:
                made = equation.primitive.bind(*operands, **equation.params)
                made = made if equation.primitive.multiple_results else [made]
            known.update(zip(equation.outvars, made, strict=True))
        return list(map(value, given))

    return compute


def call(compute: Callable[..., Any], read: list[Any], given: list[Any]) -> Any:
    """The equation that computes the variables `given` from those of `read`, as one call."""
    equation = jax.make_jaxpr(jax.jit(compute))(*(v.aval for v in read)).jaxpr.eqns[0]
    return equation.replace(invars=read, outvars=given)


def is_var(atom: Any) -> bool:
    """Whether it is a value that is known when the program runs, no constant."""
    return isinstance(atom, jex_core.Var)


def gathered(program: Any) -> list[Any]:
    """A program's equations, those on few numbers in branches.

    An equation's level is how often the way to it leaves the small ones and comes back to them, at
    most. So those of one level need none of each other that is not small, and can be computed
    together, before what is not small of their level.
    """
    largest = max((_largest(equation) for equation in program.eqns), default=0)
    # A loop of nothing else XLA makes a kernel of by itself.
    if program.effects or not _FEW_NUMBERS < largest < _MANY_NUMBERS:
        return program.eqns
    levels: dict[int, tuple[list[Any], list[Any]]] = {}
    places: dict[Any, tuple[int, bool]] = {}
    for equation, is_few in zip(program.eqns, _are_few(program), strict=True):
        before = [places[v] for v in equation.invars if is_var(v) and v in places]
        level = max((at + (is_few and not was_few) for at, was_few in before), default=0)
        levels.setdefault(level, ([], []))[0 if is_few else 1].append(equation)
        places.update((v, (level, is_few)) for v in equation.outvars)
    users: dict[Any, set[int]] = {}
    for user in (program, *program.eqns):
        for v in filter(is_var, user.outvars if user is program else user.invars):
            users.setdefault(v, set()).add(id(user))
    equations: list[Any] = []
    for level in sorted(levels):
        few, others = levels[level]
        for start in range(0, len(few), _MOST):
            equations += _together(few[start : start + _MOST], users)
        equations += others
    return equations


def _together(equations: list[Any], users: dict[Any, set[int]]) -> list[Any]:
    """A branch in place of equations, where they are enough to be worth it.

    Args:
      equations: in the order of computation.
      users: by variable, the identities of the equations that read it.
    """
    inside = set(map(id, equations))
    made = dict.fromkeys(v for equation in equations for v in equation.outvars)
    used = dict.fromkeys(v for equation in equations for v in filter(is_var, equation.invars))
    read = [v for v in used if v not in made]
    given = [v for v in made if users.get(v, inside) - inside]
    if len(equations) < _FEWEST or not given:
        return equations
    branch = functools.partial(in_branch, evaluation(equations, read, given))
    return [call(branch, read, given)]


def _largest(equation: Any) -> int:
    """Numbers of the largest array that it reads or makes."""
    return max((v.aval.size for v in (*equation.invars, *equation.outvars)), default=0)


def _is_call(equation: Any) -> bool:
    """Whether it calls a program, and not as one kernel."""
    return equation.primitive.name == "pjit" and not equation.ctx.xla_metadata


def _are_few(program: Any) -> list[bool]:
    """For each equation, whether it is arithmetic on few numbers, and not of constants alone."""
    known: set[Any] = set()
    found = []
    for equation in program.eqns:
        is_known = all(not is_var(v) or v in known for v in equation.invars)
        known.update(equation.outvars if is_known else ())
        found.append(not is_known and _is_few(equation))
    return found


def _is_few(equation: Any) -> bool:
    operands = (*equation.invars, *equation.outvars)
    if _largest(equation) > _FEW_NUMBERS or any(v.aval.dtype not in _DTYPES for v in operands):
        return False
    if _is_call(equation):
        return all(_are_few(equation.params["jaxpr"].jaxpr))
    return equation.primitive in _ARITHMETIC


_DTYPES = {np.dtype(np.float32), np.dtype(bool)}

_ARITHMETIC = {
    lax.reduce_max_p,
    lax.reduce_min_p,
    lax.reduce_sum_p,
    lax.abs_p,
    lax.add_p,
    lax.and_p,
    lax.broadcast_in_dim_p,
    lax.clamp_p,
    lax.concatenate_p,
    lax.convert_element_type_p,
    lax.div_p,
    lax.eq_p,
    lax.exp_p,
    lax.expm1_p,
    lax.ge_p,
    lax.gt_p,
    lax.integer_pow_p,
    lax.le_p,
    lax.log1p_p,
    lax.log_p,
    lax.logistic_p,
    lax.lt_p,
    lax.max_p,
    lax.min_p,
    lax.mul_p,
    lax.ne_p,
    lax.neg_p,
    lax.not_p,
    lax.or_p,
    lax.reshape_p,
    lax.rsqrt_p,
    lax.select_n_p,
    lax.sign_p,
    lax.slice_p,
    lax.sqrt_p,
    lax.square_p,
    lax.squeeze_p,
    lax.sub_p,
    lax.tanh_p,
}
