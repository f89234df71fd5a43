"""The traits of every primitive besides its rule, in one table.

A rule says how dimensions tile. Clean-ups, tactics, the verifier and the simulator need more: if an
op commutes with a sum, if it only renames an array, if it is worth computing twice. They look up
traits here, and name no primitive themselves. :func:`~.registry.register` refuses a primitive
without a row in this table. Ops of local programs without a primitive have rows as well.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

#: The way floating point operations are counted. "none" is for what only moves data; "uncounted"
#: for what computes in a way that nobody has written down yet.
Flops = Literal[
    "all_reduce", "cholesky", "convolution", "cumulative", "division", "element", "fft", "logistic",
    "matmul", "none", "random", "reduction", "scatter", "select_and_scatter", "sort",
    "transcendental", "triangular_solve", "two", "uncounted", "window",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Traits:
    """The traits of one primitive.

    Attributes:
      flops: see :data:`Flops`.
      kernel: what a compiler makes of it: a kernel "alone", one that may be "fused" with others, or
        one of those that it takes apart ("convolution", "dot", "random", "reduce",
        "select_and_scatter").
      view: when the result is its operand's buffer under another name: "never", "always", where
        size and dtype are the "same", or where the "order" in memory is.
      traffic: what it moves when it runs alone: operands and results ("whole"), as much of the
        first operand as it results in ("part"), as much as its operand 1 ("update") or operand 2
        at the places of operand 1 ("scatter"), written into the first operand.
      elementwise: an element of a result depends on the elements at its place alone.
      linear: operands in each of which it is linear while the others are held; it then commutes
        with a sum over devices, and does not enlarge that operand.
      signs: of a sum of all its operands, their signs.
      rearranges: the result consists of the operand's elements, in another order or repeated.
      relayout: the result is the same array, in another shape or precision.
      source: with constant operands it makes an array from nothing.
      broadcasts: it repeats its operand.
      lookup: it picks slices of its first operand by index.
      tag: it names its operand, by its param "name".
      library: dtypes with which a compiler for CPUs may leave it to a library.
      host: it calls a function on the host, which may have side effects.
      overwrites: the operand that a library's routine writes its result over, or -1.
      quick: a transcendental function of real numbers that compilers would rather compute twice.
      halfway: how many arrays its formula makes on the way that are expensive and used repeatedly.
      accumulates: it adds to its first operand.
      neutral: the number that as one of its two operands leaves the other as it is, or None.
      selects: the first operand chooses, for each element or for all, among the others.
      joins: it puts its operands one behind the other.
      surrounds: the operand that it puts around its first, or -1; of zeros, a sum over devices
        commutes with it.
    """

    flops: Flops
    kernel: Literal[
        "alone", "convolution", "dot", "fused", "random", "reduce", "select_and_scatter"
    ] = "alone"
    view: Literal["never", "always", "same", "order"] = "never"
    traffic: Literal["whole", "part", "update", "scatter"] = "whole"
    elementwise: bool = False
    linear: tuple[int, ...] = ()
    signs: tuple[int, ...] = ()
    rearranges: bool = False
    relayout: bool = False
    source: bool = False
    broadcasts: bool = False
    lookup: bool = False
    tag: bool = False
    library: frozenset[str] = frozenset()
    host: bool = False
    overwrites: int = -1
    quick: bool = False
    halfway: int = 0
    accumulates: bool = False
    neutral: float | None = None
    selects: bool = False
    joins: bool = False
    surrounds: int = -1

    @property
    def keeps_zeros(self) -> bool:
        """True if zeros in its only operand make a result of zeros."""
        return bool(self.linear) or self.rearranges or self.relayout


#: Of what no rule, list or table names: nothing is known, and nothing assumed.
UNKNOWN = Traits("uncounted")

#: Primitive to traits.
TABLE: dict[str, Traits] = {}


def traits_of(name: str) -> Traits:
    """The traits of a primitive, or of an op of local programs; UNKNOWN where there are none."""
    return TABLE.get(name, UNKNOWN)


def _rows(names: str, traits: Traits) -> None:
    for name in names.split():
        assert name not in TABLE, name
        TABLE[name] = traits


_alter = dataclasses.replace
_SINGLE_DOUBLE = frozenset(["float32", "float64"])
_FLOATING = _SINGLE_DOUBLE | {"bfloat16"}
_ALL_FLOATING = _FLOATING | {"float16"}

# Elementwise: one operation an element, none, or a function counted apart.
_ELEMENT = Traits("element", "fused", elementwise=True)
_IN_LIBRARY = _alter(_ELEMENT, library=_FLOATING)
_TRANSCENDENTAL = _alter(_ELEMENT, flops="transcendental")
_IDENTITY = Traits("none", view="always", elementwise=True)
_rows("abs ceil floor integer_pow round sign square", _IN_LIBRARY)
_rows("max", _alter(_IN_LIBRARY, neutral=-math.inf))
_rows("min", _alter(_IN_LIBRARY, neutral=math.inf))
_rows(
    "and clamp clz complex conj eq eq_to ge gt imag is_finite le le_to lt lt_to mulhi ne nextafter "
    "not or population_count real shift_left shift_right_arithmetic shift_right_logical "
    "xor",
    _ELEMENT,
)
_rows("select_n", _alter(_ELEMENT, selects=True))
_rows("one_minus_square", _alter(_ELEMENT, flops="two"))
_rows("rem", _alter(_ELEMENT, flops="division"))
_rows("neg", _alter(_IN_LIBRARY, linear=(0,)))
_rows("mul", _alter(_IN_LIBRARY, linear=(0, 1)))
_rows("div", _alter(_IN_LIBRARY, flops="division", linear=(0,)))
_rows("add", _alter(_IN_LIBRARY, signs=(1, 1)))
_rows("sub", _alter(_IN_LIBRARY, signs=(1, -1)))
_rows("convert_element_type", _alter(_IN_LIBRARY, view="same", relayout=True))
_rows("reduce_precision", _alter(_ELEMENT, relayout=True))
_rows("copy", _alter(_ELEMENT, relayout=True, linear=(0,)))
_rows("copy_p", _alter(_ELEMENT, view="always", relayout=True, linear=(0,)))
_rows("erf exp expm1 log log1p pow rsqrt sqrt tanh", _alter(_TRANSCENDENTAL, library=_FLOATING))
_rows("cos sin tan", _alter(_TRANSCENDENTAL, library=_FLOATING, quick=True))
_rows("erf_inv", _alter(_TRANSCENDENTAL, halfway=2))
_rows("logistic", _alter(_IN_LIBRARY, flops="logistic"))
_rows(
    "acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt cosh digamma erfc "
    "exp2 igamma igamma_grad_a igammac lgamma log2 polygamma random_gamma_grad "
    "regularized_incomplete_beta sinh zeta",
    _TRANSCENDENTAL,
)
_rows("name reshard sharding_constraint", _alter(
    _IDENTITY, relayout=True, linear=(0,), tag=True
))  # fmt: skip
_rows("optimization_barrier stop_gradient", _alter(_IDENTITY, relayout=True))
_rows(
    "from_edtype layout_constraint mesh_cast pvary to_edtype with_memory_space_constraint",
    _IDENTITY,
)

# Random numbers. Keys and their words are one buffer.
_RANDOM = Traits("random", "random")
_rows("random_bits random_fold_in random_split", _RANDOM)
_rows("threefry2x32", _alter(_RANDOM, elementwise=True))
_rows("philox2x32 philox4x32 threefry4x32", Traits("uncounted", elementwise=True))
_rows("random_clone random_unwrap random_wrap", Traits("none", view="always"))
_rows("iota_2x32_shape random_gamma random_seed rng_bit_generator rng_uniform", Traits("uncounted"))

# Shapes.
_MOVE = Traits("none", "fused")
_rows("reshape squeeze expand_dims", Traits(
    "none", view="always", rearranges=True, relayout=True, linear=(0,)
))  # fmt: skip
_rows("transpose", _alter(_MOVE, view="order", rearranges=True, relayout=True, linear=(0,)))
_rows("rev", _alter(_MOVE, rearranges=True, linear=(0,)))
_rows("broadcast_in_dim", _alter(
    _MOVE, view="same", rearranges=True, source=True, broadcasts=True
))  # fmt: skip
_rows("iota", _alter(_MOVE, source=True))
_rows("concatenate", _alter(_MOVE, view="same", joins=True))
_rows("pad", _alter(_MOVE, view="same", surrounds=1))
_rows("slice", _alter(_MOVE, view="same", traffic="part"))
_rows("split unstack", _alter(_MOVE, view="same", traffic="part"))
_rows("tile", _alter(_MOVE, view="same", broadcasts=True))
_rows("stack", _alter(_MOVE, view="same", joins=True))
_rows("bitcast_convert_type", _MOVE)

# Indexing.
_rows("dynamic_slice", _alter(_MOVE, traffic="part"))
_rows("gather", _alter(_MOVE, traffic="part", lookup=True))
_rows("dynamic_update_slice", _alter(_MOVE, traffic="update"))
_rows("scatter", Traits("none", traffic="scatter"))
_SCATTER = Traits("scatter", traffic="scatter")
_rows("scatter-max scatter-min scatter-mul scatter-sub", _SCATTER)
_rows("scatter-add", _alter(_SCATTER, accumulates=True))

# Products, reductions, windows.
_rows("dot_general", Traits("matmul", "dot", library=_FLOATING))
_rows("conv_general_dilated", Traits("convolution", "convolution"))
_REDUCTION = Traits("reduction", "reduce", view="same")
_rows("reduce_sum", _alter(_REDUCTION, linear=(0,), library=_SINGLE_DOUBLE))
_rows("reduce_max reduce_min", _alter(_REDUCTION, library=_ALL_FLOATING))
_rows("reduce_and reduce_or reduce_prod reduce_xor", _REDUCTION)
_rows("argmax argmin", Traits("reduction"))
_rows("reduce_window reduce_window_max reduce_window_min reduce_window_sum", Traits("window"))
_rows("select_and_scatter_add", Traits("select_and_scatter", "select_and_scatter"))
_rows("select_and_gather_add", Traits("uncounted", "fused"))
_rows("cumulative_window select_and_scatter", Traits("uncounted"))

# Ops that work along dimensions.
_rows("approx_top_k sort top_k", Traits("sort"))
_rows("cumlogsumexp cummax cummin cumprod cumsum", Traits("cumulative"))
_rows("fft", Traits("fft"))
_rows("cholesky", Traits("cholesky", overwrites=0))
_rows("triangular_solve", Traits("triangular_solve", overwrites=1))
_rows("eigh lu", Traits("uncounted", overwrites=0))
_rows(
    "cholesky_update eig geqp3 geqrf hessenberg householder_product lu_pivots_to_permutation qr "
    "schur svd symmetric_product tridiagonal tridiagonal_solve",
    Traits("uncounted"),
)

# What is not seen into, holds functions of its own, or is partitioned already.
_rows(
    "axis_index custom_partitioning custom_transpose_call ffi_call linear_call operation "
    "pallas_call pmax pmin ppermute psum ragged_dot_general reduce scaled_dot shard_map xla_pmap",
    Traits("uncounted"),
)
_rows("debug_callback debug_print io_callback pure_callback", Traits("uncounted", host=True))

#: The ops of local programs that are no primitives: COLLECTIVES and LOCAL of `ir.program`.
PLACED = (
    "all_gather", "all_reduce", "all_slice", "all_to_all", "axis_offset", "random_part",
    "reduce_scatter",
)  # fmt: skip
_rows("all_gather all_to_all", Traits("none"))
_rows("all_reduce reduce_scatter", Traits("all_reduce"))
_rows("all_slice", _alter(_MOVE, traffic="part", linear=(0,)))
_rows("axis_offset", _MOVE)
_rows("random_part", _RANDOM)
