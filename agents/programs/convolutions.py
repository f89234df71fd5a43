"""Convolutions, products, sums and activations in the forms that XLA computes fast on CPU.

**Convolutions.** XLA's CPU compiler has a fast one for one order of dimensions only: batch, space,
features; kernels as space, inputs, outputs. It transposes others into that order in the outermost
computation and leaves them as they are inside of loops, where plain nested loops then compute them:
of a Nature network's gradients, which come in other orders, a step in a `scan` took 5,120 ms that
takes 198 ms outside of it (batch 256, two cores, jax 0.6.2). Here the order is put right before XLA
sees it: 161 ms, in a loop.

**With jax 0.6**, besides:

- The gradient of a strided convolution's kernel is a convolution with gaps in its kernel. Of few
  images, as the channels of a screen are there, it is computed by phases, without gaps: 3.2 ms
  instead of 5.2 for the first layer of a Nature network (batch 32).
- The gradient of a layer's input, g w^T, takes time by its right operand, which is packed anew.
  Where that is at least twice as large as the left, (w g^T)^T is computed: 0.6 ms instead of 2.7
  for 32 x 512 x 3136.
- Otherwise, where its rows are whole kilobytes, which is when packing it is slow (columns then lie
  in but few sets of the first cache), it is transposed in a branch before: 0.25 ms instead of 0.29
  for 256 x 256 x 256, 0.45 instead of 0.51 for two of these.
- The gradient of a layer's weights is transposed where activations are columns. With few inputs its
  transposition stays behind the product: 46 us instead of 117 for 17 inputs (256 x 256).
- Products of matrices of which one is but a few vectors are computed vector by vector, of a
  summed dimension of few numbers as a sum of outer products: 3 us instead of 15 for the gradient
  of a first layer of 64 units on four numbers (batch 256), 1.5 instead of 8 for two actions'.
- Sums of rows and of columns are products with ones, which are computed in vectors: of a bias's
  gradient, 64 sums of 256 numbers, 1 us instead of 7. With products of few vectors, an update of
  PPO on CartPole took 5.3 ms instead of 6.8, and 128 steps of DQN 46 instead of 53.
- Random bits come of rounds that are laid out (see `threefry`).
- Operations on few numbers are gathered, so that fewer wait to be run (see `gathering`).
- The product of a single row with what was computed just before is not merged with it: a Nature
  network chooses an action in 0.47 ms instead of 0.57.
- A loop that writes over what it reads is not vectorised. An optimizer updates its parameters in
  their place, and activations are often written over the layer's output. Division by a root, as
  Adam has it, and the curves of activations are what that makes slow; they are computed in a kernel
  of their own or, of many numbers, in a branch: those write elsewhere. Adam takes 1.5 ms instead of
  2.8 for 1.7 million parameters; of 256 x 256 numbers tanh takes 26 us instead of 139, elu 72
  instead of 356, softplus 104 instead of 979; an update of PPO with its tanh networks, 7.7 ms
  instead of 11.7.
- Normal draws are computed aside too: else what reads them computes them anew, with their bits.
  With that and the product above eight steps of SAC take 34.8 ms instead of 35.9.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex_core

from ..learning import calls, gathering, threefry

Nest = Any

_IS_OLD = jax.__version_info__ < (0, 7)
_FEW_IMAGES = 16
_FEW_PRODUCTS = 4
_FEW_VECTORS = 8
_FEW_SHORT_VECTORS = 2
_SHORT = 128
_KILOBYTE = 256  # In numbers.
_MANY_TERMS = 32
_MANY_NUMBERS = 4096
_MANY_NORMALS = 512


def for_cpu(fn: Callable[..., Nest], *, is_alone: bool = True) -> Callable[..., Nest]:
    """`fn` in fast forms, what is in its loops and branches too.

    Args:
      fn: traceable; takes nests of arrays and returns one.
      is_alone: whether it runs on one device. On several XLA splits it up, for which operations
        must be where it sees them and not in calls.

    Returns:
      A function of the same arguments and results, to be traced under `jax.jit`.
    """

    def rewritten(*args: Nest) -> Nest:
        program, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
        run = jex_core.jaxpr_as_fun(_rewritten(program, is_alone))
        return jax.tree.unflatten(jax.tree.structure(shapes), run(*jax.tree.leaves(args)))

    return rewritten


def for_device(
    fn: Callable[..., Nest], device: jax.Device, *, is_alone: bool = True
) -> Callable[..., Nest]:
    """`fn` in the forms that are fast on a device: `for_cpu`, where it is one."""
    return for_cpu(fn, is_alone=is_alone) if device.platform == "cpu" else fn


def is_quick_in_turn(program: Any) -> bool:
    """Whether a program is quicker with its operations in turn than with what XLA shares out.

    With jax 0.6 that is so where all arrays are small: an update of PPO on CartPole takes 4.8 ms
    instead of 5.2, one of IMPALA 0.16 instead of 0.21.

    Args:
      program: a closed jaxpr, in fast forms.
    """
    return _IS_OLD and gathering.is_small(program.jaxpr)


def _rewritten(part: Any, is_alone: bool) -> Any:
    """A parameter of an equation, with the equations of the programs in it in fast forms."""
    if isinstance(part, jex_core.Jaxpr):  # With newer versions of jax the closed ones too.
        part = part.replace(eqns=[_fast(equation, is_alone) for equation in part.eqns])
        if _IS_OLD:
            part = part.replace(eqns=_with_slow_aside(part, is_alone))
            part = part.replace(eqns=gathering.gathered(part)) if is_alone else part
        return part
    if isinstance(part, jex_core.ClosedJaxpr):
        return part.replace(jaxpr=_rewritten(part.jaxpr, is_alone))
    if isinstance(part, tuple | list) and any(map(_is_program, part)):
        return type(part)(_rewritten(one, is_alone) for one in part)
    return part


def _is_program(part: Any) -> bool:
    return isinstance(part, jex_core.ClosedJaxpr | jex_core.Jaxpr)


def _fast(equation: Any, is_alone: bool) -> Any:
    form = _FORMS[is_alone].get(equation.primitive)
    if form is None:
        params = {name: _rewritten(value, is_alone) for name, value in equation.params.items()}
        return equation.replace(params=params)
    compute = form(equation.params, *(v.aval for v in equation.invars))
    if compute is None:
        return equation
    return _call(compute, equation.invars, equation)


def _call(compute: Callable[..., Any], operands: list[Any], equation: Any) -> Any:
    """One equation in place of one, with the name and line of the user's: a call of `compute`."""
    call = calls.call(compute, operands, equation.outvars)
    return call.replace(source_info=equation.source_info)


Form = Callable[..., jax.Array]
"""What computes a primitive of its operands."""


def _convolution(params: dict[str, Any], lhs: Any, rhs: Any) -> Form | None:
    """The fast form of a convolution; None: it has it."""
    numbers = params["dimension_numbers"]
    fast = _fast_numbers(lhs.ndim)
    images = lhs.shape[numbers.lhs_spec[0]]
    by_phases = _IS_OLD and images < _FEW_IMAGES and _has_phases(params)
    if numbers == fast and not by_phases:
        return None
    convolve = _by_phases if by_phases else lax.conv_general_dilated_p.bind

    def compute(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        lhs = _moved(lhs, numbers.lhs_spec, fast.lhs_spec)
        rhs = _moved(rhs, numbers.rhs_spec, fast.rhs_spec)
        out = convolve(lhs, rhs, **{**params, "dimension_numbers": fast})
        return _moved(out, fast.out_spec, numbers.out_spec)

    return compute


def _fast_numbers(rank: int) -> lax.ConvDimensionNumbers:
    space = range(1, rank - 1)
    batch_first = (0, rank - 1, *space)
    return lax.ConvDimensionNumbers(
        batch_first, (rank - 1, rank - 2, *range(rank - 2)), batch_first
    )


def _moved(x: jax.Array, held: Sequence[int], wanted: Sequence[int]) -> jax.Array:
    """Dimensions from where one order holds them to where another wants them."""
    order = [0] * x.ndim
    for at, to in zip(held, wanted, strict=True):
        order[to] = at
    return lax.transpose(x, order)


def _has_phases(params: dict[str, Any]) -> bool:
    """Whether a convolution has gaps in its kernel, and nothing else that is out of the common."""
    plain = (*params["window_strides"], *params["lhs_dilation"])
    groups = (params["feature_group_count"], params["batch_group_count"])
    return max(params["rhs_dilation"]) > 1 and {*plain, *groups} == {1}


def _by_phases(lhs: jax.Array, rhs: jax.Array, **params: Any) -> jax.Array:
    """A convolution in the fast order whose kernel [*M, C, F] has gaps, s - 1 between two numbers.

    Its result at s a + p is made of inputs s (a + i) + p alone, i < M: of the phase p of its inputs
    with the kernel without gaps. Phases are side by side as images.
    """
    gaps, space = params["rhs_dilation"], range(1, lhs.ndim - 1)
    # Results that are asked for, and as many as phases make.
    sizes = [
        lhs.shape[d] + sum(params["padding"][d - 1]) - s * (rhs.shape[d - 1] - 1)
        for d, s in zip(space, gaps, strict=True)
    ]
    counts = [-(-size // s) for size, s in zip(sizes, gaps, strict=True)]
    pads = [(0, 0, 0)]
    for d, s, count in zip(space, gaps, counts, strict=True):
        before = params["padding"][d - 1][0]
        pads.append((before, s * (count + rhs.shape[d - 1] - 1) - before - lhs.shape[d], 0))
    lhs = lax.pad(lhs, jnp.zeros((), lhs.dtype), [*pads, (0, 0, 0)])
    images, features = lhs.shape[0], lhs.shape[-1]
    apart = [n for d, s in zip(space, gaps, strict=True) for n in (lhs.shape[d] // s, s)]
    axes = range(len(gaps))
    lhs = lhs.reshape(images, *apart, features)
    lhs = lhs.transpose(0, *(2 * a + 2 for a in axes), *(2 * a + 1 for a in axes), lhs.ndim - 1)
    lhs = lhs.reshape(-1, *lhs.shape[1 + len(gaps) :])
    ones = (1,) * len(gaps)
    changed = {"rhs_dilation": ones, "padding": ((0, 0),) * len(gaps)}
    out = lax.conv_general_dilated_p.bind(lhs, rhs, **{**params, **changed})
    out = out.reshape(images, *gaps, *counts, out.shape[-1])
    order = [n for a in axes for n in (1 + len(gaps) + a, 1 + a)]
    out = out.transpose(0, *order, out.ndim - 1)
    whole = (s * count for s, count in zip(gaps, counts, strict=True))
    out = out.reshape(images, *whole, -1)
    return lax.slice(out, (0,) * out.ndim, (images, *sizes, out.shape[-1]))


def _product(is_alone: bool, params: dict[str, Any], lhs: Any, rhs: Any) -> Form | None:
    """The fast form of a product of two matrices, or of as many of both; None: it has it."""
    (of_lhs, of_rhs), (batch, batch_rhs) = params["dimension_numbers"]
    if not _IS_OLD:
        return None
    if lhs.ndim == rhs.ndim == 2 and len(of_lhs) == 1 and lhs.dtype == rhs.dtype == jnp.float32:
        thin = _thin_product(lhs, rhs, of_lhs[0], of_rhs[0], is_alone)
        if thin is not None:
            return thin
    first = tuple(range(lhs.ndim - 2))
    if lhs.ndim < 2 or lhs.ndim != rhs.ndim or not batch == batch_rhs == first:
        return None
    is_transposed = (of_lhs, of_rhs) == ((lhs.ndim - 1,), (rhs.ndim - 1,))
    if is_transposed and 2 * lhs.shape[-2] <= rhs.shape[-2]:

        def swapped(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
            # XLA would swap them back: to it a transposed product is a product.
            out = lax.optimization_barrier(lax.dot_general_p.bind(rhs, lhs, **params))
            return jnp.swapaxes(out, -1, -2)

        return swapped
    is_large = min(lhs.shape[-2], rhs.shape[-2]) >= _SHORT and rhs.dtype == jnp.float32
    if is_alone and is_transposed and is_large and rhs.shape[-1] % _KILOBYTE == 0:

        def turned(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
            numbers = (((lhs.ndim - 1,), (lhs.ndim - 2,)), (first, first))
            rhs = calls.in_branch(lambda x: jnp.swapaxes(x, -1, -2), rhs)
            return lax.dot_general_p.bind(lhs, rhs, **{**params, "dimension_numbers": numbers})

        return turned
    is_wide = lhs.ndim == 2 and 8 * rhs.shape[0] <= lhs.shape[0] and lhs.shape[1] >= _SHORT
    if is_transposed and is_wide:

        def straight(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
            numbers = (((1,), (0,)), ((), ()))
            out = lax.dot_general_p.bind(lhs, rhs.T, **{**params, "dimension_numbers": numbers})
            # Of both transposed XLA would make one product, which is slow.
            return lax.optimization_barrier(out)

        return straight
    if (of_lhs, of_rhs) == ((lhs.ndim - 1,), (rhs.ndim - 2,)) and lhs.shape[-2] == 1:
        return lambda lhs, rhs: lax.optimization_barrier(
            lax.dot_general_p.bind(lax.optimization_barrier(lhs), rhs, **params)
        )
    return None


def _thin_product(lhs: Any, rhs: Any, of_lhs: int, of_rhs: int, is_alone: bool) -> Form | None:
    """The fast form of a product of matrices of which one is but a few vectors; None: it has it.

    Args:
      lhs: its shape, [M, K] or, where `of_lhs` is 0, [K, M].
      rhs: [K, N] or, where `of_rhs` is 1, [N, K].
      of_lhs: the dimension of the left operand that is summed over.
      of_rhs: of the right one.
      is_alone: as of `for_cpu`.
    """
    rows, columns, depth = lhs.shape[1 - of_lhs], rhs.shape[1 - of_rhs], lhs.shape[of_lhs]

    def part(x: jax.Array, at: int, dim: int) -> jax.Array:
        return lax.index_in_dim(x, at, dim, keepdims=False)

    def outer(lhs: jax.Array, rhs: jax.Array, start: int = 0, stop: int = depth) -> jax.Array:
        first, *others = (
            part(lhs, k, of_lhs)[:, None] * part(rhs, k, of_rhs) for k in range(start, stop)
        )
        return sum(others, first)

    def outer_in_two(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        first = calls.one_kernel(lambda lhs, rhs: outer(lhs, rhs, 0, 2), lhs, rhs)
        return first + outer(lhs, rhs, 2)

    def by_columns(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        each = (part(rhs, n, 1 - of_rhs) for n in range(columns))
        return jnp.stack([_dot(lhs, vector, of_lhs, 0) for vector in each], axis=1)

    def by_rows(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        each = (part(lhs, m, 1 - of_lhs) for m in range(rows))
        return jnp.stack([_dot(vector, rhs, 0, of_rhs) for vector in each])

    given = jax.ShapeDtypeStruct((rows, columns), lhs.dtype)

    def may_be_kernel(steps: int) -> bool:
        return is_alone and calls.is_one_thread(given, (lhs, rhs), steps)

    if depth <= _FEW_PRODUCTS and given.size >= _MANY_NUMBERS:
        return outer_in_two if depth > 2 and may_be_kernel(steps=3) else outer
    if columns <= _FEW_VECTORS and lhs.size >= _MANY_NUMBERS:
        in_kernel = functools.partial(calls.one_kernel, by_columns)
        return in_kernel if may_be_kernel(steps=0) else by_columns
    few = _FEW_VECTORS if of_rhs == 1 else _FEW_SHORT_VECTORS if depth <= _SHORT else 1
    if 1 < rows <= few and rhs.size >= _MANY_NUMBERS:
        return by_rows
    return None


def _dot(lhs: jax.Array, rhs: jax.Array, of_lhs: int, of_rhs: int) -> jax.Array:
    return lax.dot_general(lhs, rhs, (((of_lhs,), (of_rhs,)), ((), ())))


def _sum(params: dict[str, Any], operand: Any) -> Form | None:
    """The fast form of a sum of rows or of columns; None: it has it."""
    axes, rank = params["axes"], operand.ndim
    of_rows, of_columns = (*range(rank - len(axes), rank),), (*range(len(axes)),)
    if not _IS_OLD or operand.dtype != jnp.float32 or operand.size < _MANY_NUMBERS:
        return None
    if axes not in (of_rows, of_columns) or len(axes) == rank:
        return None
    length = math.prod(operand.shape[axis] for axis in axes)
    if length < _MANY_TERMS:
        return None

    def compute(x: jax.Array) -> jax.Array:
        kept = [size for axis, size in enumerate(x.shape) if axis not in axes]
        if axes == of_rows:
            return _dot(x.reshape(-1, length), jnp.ones(length), 1, 0).reshape(kept)
        return _dot(jnp.ones(length), x.reshape(length, -1), 0, 0).reshape(kept)

    return compute


def _with_slow_aside(program: Any, is_alone: bool) -> list[Any]:
    """Its equations; what is slow in place is aside, with what only it needs."""
    used = [*program.outvars, *(v for equation in program.eqns for v in equation.invars)]
    times = collections.Counter(filter(calls.is_var, used))
    makers = {v: equation for equation in program.eqns for v in equation.outvars}
    asides: dict[int, Any] = {}  # By the identity of the equation that is replaced.
    inside: set[int] = set()

    def gather(equation: Any) -> list[Any]:
        """It and what only it needs, in the order of computation."""
        only = [v for v in filter(calls.is_var, equation.invars) if times[v] == 1]
        few = [makers[v] for v in only if v in makers and makers[v].primitive in _ELEMENTWISE]
        return [*(other for maker in few for other in gather(maker)), equation]

    for equation in program.eqns:
        is_curve = equation.primitive in _CURVES
        if not is_curve and equation.primitive is not lax.div_p:
            continue
        many = _MANY_NORMALS if equation.primitive is lax.erf_inv_p else _MANY_NUMBERS
        if equation.outvars[0].aval.size < many:
            continue
        group = gather(equation)
        if not is_curve and all(member.primitive is not lax.sqrt_p for member in group):
            continue
        made = {v for member in group for v in member.outvars}
        needed = [v for member in group for v in filter(calls.is_var, member.invars)]
        operands = list(dict.fromkeys(v for v in needed if v not in made))
        if not operands:  # It is a constant.
            continue
        for member in group:
            asides.pop(id(member), None)
        asides[id(equation)] = _call(_aside(group, operands, is_alone), operands, equation)
        inside.update(map(id, group))
    return [
        asides.get(id(equation), equation)
        for equation in program.eqns
        if id(equation) in asides or id(equation) not in inside
    ]


def _aside(group: list[Any], operands: list[Any], is_alone: bool) -> Callable[..., Any]:
    """What computes the last of these equations from the operands of all, and writes elsewhere."""
    given = group[-1].outvars[0]
    evaluate = calls.evaluation(group, operands, [given])
    steps = sum(_STEPS.get(equation.primitive, 1) for equation in group)
    read = [v.aval for v in operands]
    fits = is_alone and calls.is_one_thread(given.aval, read, steps)
    fits = fits and calls.needs_all(evaluate, read)
    place = calls.one_kernel if fits else calls.in_branch
    return functools.partial(place, lambda *values: evaluate(*values)[0])


_CURVES = {lax.erf_inv_p, lax.expm1_p, lax.log1p_p, lax.logistic_p, lax.tanh_p}
"""Of activations: elu, softplus, silu, gelu and tanh; and of normal draws."""

_ELEMENTWISE = {
    *_CURVES,
    lax.add_p,
    lax.broadcast_in_dim_p,
    lax.convert_element_type_p,
    lax.div_p,
    lax.mul_p,
    lax.sqrt_p,
}

_STEPS = {**dict.fromkeys([*_CURVES, lax.sqrt_p], 4), lax.broadcast_in_dim_p: 0, lax.erf_inv_p: 64}
"""In which XLA computes a number at most, where it is not one."""


def _forms(is_alone: bool) -> dict[Any, Callable[..., Form | None]]:
    """By primitive, `(params, *shapes of operands) -> its fast form`, or None: it has it."""
    rewritten = functools.partial(for_cpu, is_alone=is_alone)
    return {
        lax.conv_general_dilated_p: _convolution,
        lax.dot_general_p: functools.partial(_product, is_alone),
        lax.reduce_sum_p: _sum,
        **(threefry.forms(rewritten) if _IS_OLD else {}),
    }


_FORMS = {is_alone: _forms(is_alone) for is_alone in (False, True)}
