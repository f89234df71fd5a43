"""Convolutions as XLA computes them fast on CPU, wherever in a program they stand.

XLA's CPU compiler has a fast convolution for one order of dimensions only: batch, space, features;
kernels as space, inputs, outputs. It transposes others into that order in the outermost computation
and leaves them as they are inside of loops, where plain nested loops then compute them: of a
Nature network's gradients, which come in other orders, a step in a `scan` took 5,120 ms that takes
198 ms outside of it (batch 256, two cores, jax 0.6.2). Here the order is put right before XLA sees
it: 161 ms, in a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core as jex_core

Nest = Any


def in_fast_order(fn: Callable[..., Nest]) -> Callable[..., Nest]:
    """`fn` with its convolutions, those in its loops and branches too, in the fast order.

    Args:
      fn: traceable; takes nests of arrays and returns one.

    Returns:
      A function of the same arguments and results, to be traced under `jax.jit`.
    """

    def ordered(*args: Nest) -> Nest:
        program, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
        run = jex_core.jaxpr_as_fun(_rewritten(program))
        return jax.tree.unflatten(jax.tree.structure(shapes), run(*jax.tree.leaves(args)))

    return ordered


def _rewritten(part: Any) -> Any:
    """A parameter of an equation, with the convolutions of the programs in it reordered."""
    if isinstance(part, jex_core.Jaxpr):  # With newer versions of jax the closed ones too.
        return part.replace(eqns=[_reordered(equation) for equation in part.eqns])
    if isinstance(part, jex_core.ClosedJaxpr):
        return part.replace(jaxpr=_rewritten(part.jaxpr))
    if isinstance(part, tuple | list):
        return type(part)(map(_rewritten, part)) if any(map(_is_program, part)) else part
    return part


def _is_program(part: Any) -> bool:
    return isinstance(part, jex_core.ClosedJaxpr | jex_core.Jaxpr)


def _reordered(equation: Any) -> Any:
    if equation.primitive is not lax.conv_general_dilated_p:
        params = {name: _rewritten(value) for name, value in equation.params.items()}
        return equation.replace(params=params)
    numbers = equation.params["dimension_numbers"]
    if numbers == _fast_numbers(len(numbers.lhs_spec)):
        return equation

    def convolve(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return _convolve(lhs, rhs, equation.params)

    # A call, so that it is one equation in place of one, with the name and line of the user's.
    call = jax.make_jaxpr(jax.jit(convolve))(*(v.aval for v in equation.invars)).jaxpr.eqns[0]
    return call.replace(
        invars=equation.invars, outvars=equation.outvars, source_info=equation.source_info
    )


def _fast_numbers(rank: int) -> lax.ConvDimensionNumbers:
    space = range(1, rank - 1)
    batch_first = (0, rank - 1, *space)
    return lax.ConvDimensionNumbers(
        batch_first, (rank - 1, rank - 2, *range(rank - 2)), batch_first
    )


def _convolve(lhs: jax.Array, rhs: jax.Array, params: dict[str, Any]) -> jax.Array:
    """What the primitive computes, by way of the fast order."""
    numbers = params["dimension_numbers"]
    fast = _fast_numbers(lhs.ndim)
    lhs = _moved(lhs, numbers.lhs_spec, fast.lhs_spec)
    rhs = _moved(rhs, numbers.rhs_spec, fast.rhs_spec)
    out = lax.conv_general_dilated_p.bind(lhs, rhs, **{**params, "dimension_numbers": fast})
    return _moved(out, fast.out_spec, numbers.out_spec)


def _moved(x: jax.Array, held: Sequence[int], wanted: Sequence[int]) -> jax.Array:
    """Dimensions from where one order holds them to where another wants them."""
    order = [0] * x.ndim
    for at, to in zip(held, wanted, strict=True):
        order[to] = at
    return lax.transpose(x, order)
