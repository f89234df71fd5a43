"""Convolutions in the one order of dimensions for which XLA on CPU has a fast kernel.

That order is batch, space, features; kernels as space, inputs, outputs. XLA transposes others into
it in the outermost computation only. Inside of loops they stay, and plain nested loops compute
them: the gradients of a Nature network, which come in other orders, take 980 ms a step in a `scan`
(batch 32). Put into order before XLA sees them they take 29.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core as jex_core

Nest = Any


def for_device(fn: Callable[..., Nest], device: jax.Device) -> Callable[..., Nest]:
    """Puts the convolutions of a function into the order that is fast on a device.

    Those in its loops, branches and calls too. On anything but a CPU the function stays as it is.

    Args:
      fn: traceable; takes nests of arrays and returns one.
      device: on which it will run, or one of several.

    Returns:
      A function of the same arguments and results, to be traced under `jax.jit`.
    """
    if device.platform != "cpu":
        return fn

    def ordered(*args: Nest) -> Nest:
        program, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
        run = jex_core.jaxpr_as_fun(_rewritten(program))
        return jax.tree.unflatten(jax.tree.structure(shapes), run(*jax.tree.leaves(args)))

    return ordered


def _rewritten(part: Any) -> Any:
    """A parameter of an equation, with the convolutions of the programs in it in order."""
    if isinstance(part, jex_core.Jaxpr):  # With newer versions of jax the closed ones too.
        return part.replace(eqns=list(map(_ordered, part.eqns)))
    if isinstance(part, jex_core.ClosedJaxpr):
        return part.replace(jaxpr=_rewritten(part.jaxpr))
    if isinstance(part, tuple | list) and any(map(_is_program, part)):
        make = getattr(part, "_make", type(part))  # Linear solves have a named tuple of programs.
        return make(map(_rewritten, part))
    return part


def _is_program(part: Any) -> bool:
    return isinstance(part, jex_core.ClosedJaxpr | jex_core.Jaxpr)


def _ordered(equation: Any) -> Any:
    """An equation with its convolutions in order, whether it is one or has some inside."""
    if equation.primitive is not lax.conv_general_dilated_p:
        params = {name: _rewritten(value) for name, value in equation.params.items()}
        return equation.replace(params=params)
    numbers = equation.params["dimension_numbers"]
    fast = _fast_numbers(equation.invars[0].aval.ndim)
    if numbers == fast:
        return equation

    def compute(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        lhs = _moved(lhs, numbers.lhs_spec, fast.lhs_spec)
        rhs = _moved(rhs, numbers.rhs_spec, fast.rhs_spec)
        params = {**equation.params, "dimension_numbers": fast}
        out = lax.conv_general_dilated_p.bind(lhs, rhs, **params)
        return _moved(out, fast.out_spec, numbers.out_spec)

    # One equation, a call, takes the place of one, with the name and line of the user's.
    shapes = [v.aval for v in equation.invars]
    call = jax.make_jaxpr(jax.jit(compute))(*shapes).jaxpr.eqns[0]
    return call.replace(
        invars=equation.invars, outvars=equation.outvars, source_info=equation.source_info
    )


def _fast_numbers(rank: int) -> lax.ConvDimensionNumbers:
    space = range(1, rank - 1)
    batch_first = (0, rank - 1, *space)
    return lax.ConvDimensionNumbers(
        batch_first, (rank - 1, rank - 2, *range(rank - 2)), batch_first
    )


def _moved(x: jax.Array, held: Sequence[int], wanted: Sequence[int]) -> jax.Array:
    """Moves dimensions from where one order holds them to where another wants them."""
    order = [0] * x.ndim
    for at, to in zip(held, wanted, strict=True):
        order[to] = at
    return lax.transpose(x, order)
