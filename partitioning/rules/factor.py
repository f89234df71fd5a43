"""`Rule`: the factor that each dimension of an op's operands and results carries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import jax

from ..ir.program import Layout, Op, Value

#: The factor of a dimension that the op needs whole.
REPLICATED_FACTOR = -1

#: For each dimension, its factor or REPLICATED_FACTOR.
Dims = tuple[int, ...]

#: From an op, and the local shapes of its operands and results, to the params the local op runs
#: with.
Localize = Callable[
    [Mapping[str, Any], list[tuple[int, ...]], list[tuple[int, ...]]], dict[str, Any]
]

#: (operand, dimension) to the (result, dimension) pairs over which its elements are spread.
Spreads = Mapping[tuple[int, int], tuple[tuple[int, int], ...]]

#: For each tiled factor, its mesh axes, major to minor.
Axes = Mapping[int, tuple[str, ...]]


class LocalWriter(Protocol):
    """Writes local ops for a rule, where shrinking shapes is not enough."""

    def rule(self, op: Op) -> Rule:
        """The rule of an op that has one."""

    def result_layouts(self, op: Op, axes: Axes) -> list[Layout]:
        """The layouts of the op's results, given the axes of each factor."""

    def local_shape(self, shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
        """The shape of one device's part."""

    def is_zero(self, value: Value) -> bool:
        """True if a global value is an array of zeros."""

    def offset(self, axes: tuple[str, ...], size: int) -> Value:
        """A scalar int32: this device's linear index over `axes`, times `size`."""

    def function(
        self,
        like: Op,
        fn: Callable[..., jax.Array],
        operands: Sequence[Value],
        layouts: Sequence[Layout],
    ) -> list[Value]:
        """Writes the ops of a traced function of local operands, as of the source line of `like`;
        results get the given layouts.
        """

    def placed(
        self, like: Op, name: str, operand: Value, layout: Layout, params: dict[str, Any]
    ) -> Value:
        """Writes one op, of those of local programs or of `like`'s primitive, that makes what
        `like` makes, in the given layout.
        """


#: Writes the local ops of an op one of whose `special` factors is tiled. Takes the writer, the op,
#: the local operands and the axes of every factor; returns the local results.
Expand = Callable[[LocalWriter, Op, list[Value], Axes], list[Value]]


@dataclasses.dataclass(frozen=True)
class Rule:
    """An op in einsum form. Propagation and lowering know ops only through this.

    A factor is an independent loop of the op. A factor that a result carries passes through; one
    that only operands carry is reduced, and the results of a tiled run are partial until reduced
    with its monoid.

    Attributes:
      operands: for each operand, the factor of each dimension. A scalar has none.
      results: the same for results.
      sizes: for each factor, how often it may be divided: the dimension's size, or that of the part
        of it that moves as a block (the major part of a dimension that a reshape splits).
      monoids: reduced factors, with "sum", "max", "min", "and" or "or".
      localize: see :data:`Localize`; None where the params hold no sizes.
      spreads: for an operand and its dimension, the results and dimensions over which the elements
        along it are spread, where no factor carries the whole of it there. What was tiled over it
        ends here, and may be tiled again there.
      special: factors that cannot be tiled by shrinking shapes alone.
      expand: see :data:`Expand`; needed where `special` is not empty.
    """

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    sizes: tuple[int, ...]
    monoids: Mapping[int, str] = dataclasses.field(default_factory=dict)
    localize: Localize | None = None
    special: frozenset[int] = frozenset()
    expand: Expand | None = None
    spreads: Spreads = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        operands = ", ".join(_dims_text(dims) for dims in self.operands)
        results = ", ".join(_dims_text(dims) for dims in self.results)
        text = f"({operands}) -> ({results})"
        sizes = " ".join(f"{_letter(i)}={size}" for i, size in enumerate(self.sizes))
        if sizes:
            text += f" {sizes}"
        if self.monoids:
            text += " reduce " + " ".join(
                f"{_letter(f)}:{m}" for f, m in sorted(self.monoids.items())
            )
        return text


def _letter(factor: int) -> str:
    return chr(ord("a") + factor) if factor < 26 else f"a{factor}"


def _dims_text(dims: Dims) -> str:
    return "[" + " ".join("_" if f == REPLICATED_FACTOR else _letter(f) for f in dims) + "]"


class RuleBuilder:
    """Numbers factors while a rule is written."""

    def __init__(self, op: Op):
        self.operands = [[REPLICATED_FACTOR] * v.ndim for v in op.inputs]
        self.results = [[REPLICATED_FACTOR] * v.ndim for v in op.outputs]
        self.sizes: list[int] = []
        self.monoids: dict[int, str] = {}
        self.special: set[int] = set()
        self.spreads: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}

    def factor(
        self,
        size: int,
        operands: Sequence[tuple[int, int]] = (),
        results: Sequence[tuple[int, int]] = (),
        monoid: str = "",
        special: bool = False,
    ) -> int:
        """Adds a factor carried by the given (position, dimension) pairs, and returns its
        number.
        """
        number = len(self.sizes)
        self.sizes.append(size)
        for position, dim in operands:
            self.operands[position][dim] = number
        for position, dim in results:
            self.results[position][dim] = number
        if monoid:
            self.monoids[number] = monoid
        if special:
            self.special.add(number)
        return number

    def spread(self, operand: int, dim: int, results: Iterable[tuple[int, int]]) -> None:
        """Says over which (position, dimension) pairs of results an operand's dimension is
        spread.
        """
        found = tuple(results)
        if found:
            self.spreads[operand, dim] = self.spreads.get((operand, dim), ()) + found

    def rule(self, localize: Localize | None = None, expand: Expand | None = None) -> Rule:
        return Rule(
            tuple(map(tuple, self.operands)),
            tuple(map(tuple, self.results)),
            tuple(self.sizes),
            self.monoids,
            localize,
            frozenset(self.special),
            expand,
            self.spreads,
        )
