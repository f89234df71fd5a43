"""Several operations in one call, for XLA's CPU compiler of jax 0.6.

XLA makes a kernel of every operation, or fusion of some. Two kinds of calls keep them together:

- **In a branch** they are still kernels, one after another, but one thing that waits to be run.
- **One kernel** is quicker. XLA makes one of a call that says of itself that it is small and not to
  be written out, whatever is in it, and ends the process where it cannot. So there must not be:

  - What XLA shares out among threads. That goes by an estimate (`DefaultCostModel` in its
    `parallel_task_assignment.cc`): operations, or fusions, that compute no more numbers than they
    read and write bytes are shared out if those are 512 KiB; others if they take 200,000 cycles,
    ten a byte and one a number (two a root or a curve). See `is_one_thread`.
  - Operands that nothing in it reads once XLA has made it simpler: only what is read or computed
    there has a place in the kernel (`GetAllSlices` in its `computation_kernel_emitter.cc`). See
    `needs_all`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend import core as jex_core

_SHARED_OUT = 2**17  # Numbers of 32 bits in 512 KiB.


def one_kernel(compute: Callable[..., Any], *operands: jax.Array) -> Any:
    """What is computed of the operands, by a kernel of its own; to be traced.

    It must be small and need all of them; see `is_one_thread` and `needs_all`.
    """
    with set_xla_metadata(inlineable="false", xla_cpu_small_call="true"):
        return jax.jit(compute)(*operands)


def in_branch(compute: Callable[..., Any], *operands: jax.Array) -> Any:
    """What is computed of the operands, in a branch; to be traced.

    Both branches are the same, and which is taken is known when the program runs: XLA keeps them.
    """
    number = min(operands, key=lambda x: x.size).reshape(-1)[0]
    return lax.cond(number > 0, compute, compute, *operands)


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


def needs_all(compute: Callable[..., Any], read: Iterable[Any]) -> bool:
    """Whether XLA finds no operand that a function can do without, and no constant result.

    Where that is not sure it is no. XLA drops what is cut off of what was joined, a choice between
    two that are one, and one that is known since no square, exponential or the like is below zero.
    For the sake of infinities and NaN it cancels no floats.

    Args:
      compute: traceable, to equations without calls in them; see `evaluation`.
      read: shapes and dtypes of its operands.
    """
    program = jax.make_jaxpr(compute)(*read).jaxpr
    if program.constvars or any(v.aval.dtype != np.float32 for v in program.outvars):
        return False
    joins = any(equation.primitive is lax.concatenate_p for equation in program.eqns)
    varying, made = set(program.invars), set[Any]()
    all_needs = []
    for equation in program.eqns:
        needs = _needs(equation, varying, joins)
        all_needs.append(needs)
        if not varying.isdisjoint(needs) or _is_open(equation, varying, made):
            varying.update(equation.outvars)
        made.update(equation.outvars)
    needed = set(program.outvars)
    for equation, needs in zip(reversed(program.eqns), reversed(all_needs), strict=True):
        if not needed.isdisjoint(equation.outvars):
            needed.update(needs)
    return varying.issuperset(program.outvars) and needed.issuperset(program.invars)


def _needs(equation: Any, varying: set[Any], joins: bool) -> list[Any]:
    """Those of an equation's operands that its result, of floats, is sure to need.

    Args:
      equation: one of a program.
      varying: what is sure to be no constant.
      joins: whether something is joined in the program.
    """
    primitive, invars = equation.primitive, equation.invars
    if primitive is lax.select_n_p:
        invars = invars[1:] if invars[0] in varying else []
    elif primitive is lax.integer_pow_p:
        invars = invars if equation.params["y"] else []
    elif primitive is lax.convert_element_type_p:
        invars = [v for v in invars if v.aval.dtype == np.float32]
    elif primitive not in NEED_ALL or (primitive is lax.slice_p and joins):
        return []
    return list(filter(is_var, invars))


def _is_open(equation: Any, varying: set[Any], made: set[Any]) -> bool:
    """Whether it is a comparison that is sure to be known only when the program runs.

    Args:
      equation: one of a program.
      varying: what is sure to be no constant.
      made: what is computed by the program.
    """
    operands = [v for v in equation.invars if is_var(v)]
    if equation.primitive not in COMPARISONS or not varying.issuperset(operands):
        return False
    literals = [v.val for v in equation.invars if not is_var(v)]
    return len(set(operands)) == len(operands) and (0 not in literals or made.isdisjoint(operands))


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
            if is_call(equation):
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


def is_call(equation: Any) -> bool:
    """Whether it calls a program, and not as one kernel."""
    # With newer versions of jax the name is the first.
    return equation.primitive.name in ("jit", "pjit") and not equation.ctx.xla_metadata


def is_var(atom: Any) -> bool:
    """Whether it is a value that is known when the program runs, no constant."""
    return isinstance(atom, jex_core.Var)


COMPARISONS = {lax.eq_p, lax.ge_p, lax.gt_p, lax.le_p, lax.lt_p, lax.ne_p}

NEED_ALL = {
    lax.abs_p,
    lax.add_p,
    lax.broadcast_in_dim_p,
    lax.clamp_p,
    lax.concatenate_p,
    lax.div_p,
    lax.exp_p,
    lax.expm1_p,
    lax.log1p_p,
    lax.log_p,
    lax.logistic_p,
    lax.max_p,
    lax.min_p,
    lax.mul_p,
    lax.neg_p,
    lax.reduce_max_p,
    lax.reduce_min_p,
    lax.reduce_sum_p,
    lax.reshape_p,
    lax.rsqrt_p,
    lax.slice_p,
    lax.sqrt_p,
    lax.square_p,
    lax.squeeze_p,
    lax.sub_p,
    lax.tanh_p,
}
"""On floats. A slice does where it is not of what was joined."""
