"""Rules for code that jax does not see into: kernels and custom calls, by the user's own word.

    @pt.register_rule("b . h ., b . h ., b . h . -> b . h .")
    def attention(q, k, v):
        return pl.pallas_call(...)(q, k, v)

A partitioned step runs the function on the parts that a device has; elsewhere it is the function
itself.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .rules.factor import Rule, RuleBuilder
from .rules.registry import register

#: Of a dimension that the function needs whole.
WHOLE = "."
#: Of the dimensions that `jax.vmap` adds; no name that a rule may have.
_MAPPED = "@"


@dataclasses.dataclass(frozen=True)
class Subscripts:
    """A rule in words: a name for each dimension of operands and results, or `WHOLE`."""

    operands: tuple[tuple[str, ...], ...]
    results: tuple[tuple[str, ...], ...]

    @classmethod
    def parse(cls, text: str) -> Subscripts:
        """Reads "b t ., . k -> b t k": as of `jax.numpy.einsum`, with a space between dimensions.

        Raises:
          ValueError: it does not read, or a result has a name that no operand has.
        """
        sides = text.split("->")
        if len(sides) != 2:
            raise ValueError(
                f"rule {text!r} is no OPERANDS -> RESULTS; write e.g. 'b ., . k -> b k'"
            )
        operands, results = (
            tuple(tuple(array.split()) for array in side.split(",")) for side in sides
        )
        for array in (*operands, *results):
            names = [name for name in array if name != WHOLE]
            for name in names:
                if not name.isidentifier():
                    raise ValueError(f"rule {text!r}: {name!r} is no name; use letters, or '.'")
                if names.count(name) > 1:
                    raise ValueError(f"rule {text!r}: {name!r} stands twice in one array")
        known = {name for array in operands for name in array}
        for name in (name for array in results for name in array):
            if name not in known and name != WHOLE:
                raise ValueError(f"rule {text!r}: no operand has the dimension {name!r}")
        return cls(operands, results)

    def check(self, operands: Sequence[Any], results: Sequence[Any]) -> None:
        """Raises ValueError where arrays are not as the rule says."""
        sizes: dict[str, int] = {}
        for what, arrays, rule in (
            ("operand", operands, self.operands), ("result", results, self.results)
        ):  # fmt: skip
            if len(arrays) != len(rule):
                raise ValueError(
                    f"the rule {self} has {len(rule)} {what}s; there are {len(arrays)}"
                )
            for number, (array, names) in enumerate(zip(arrays, rule, strict=True)):
                if len(array.shape) != len(names):
                    raise ValueError(
                        f"the rule {self} has {len(names)} dimensions of {what} {number}, whose "
                        f"shape is {tuple(array.shape)}"
                    )
                for name, size in zip(names, array.shape, strict=True):
                    if name != WHOLE and sizes.setdefault(name, size) != size:
                        raise ValueError(
                            f"the rule {self} has {name!r} of {sizes[name]} and, in {what} "
                            f"{number}, of {size}"
                        )

    def mapped(self, which: Sequence[bool]) -> Subscripts:
        """The rule of the function under `jax.vmap`, over these of its operands."""
        name = _MAPPED * (1 + sum(n.startswith(_MAPPED) for n in self.operands[which.index(True)]))
        operands = (
            (name, *names) if one else names
            for names, one in zip(self.operands, which, strict=True)
        )
        return Subscripts(tuple(operands), tuple((name, *names) for names in self.results))

    def __str__(self) -> str:
        sides = (", ".join(map(" ".join, side)) for side in (self.operands, self.results))
        return repr(" -> ".join(sides))


def register_rule(rule: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a function a rule by which its dimensions may be split.

    Args:
      rule: a name for each dimension of the operands and the results, which are told apart by
        commas and an arrow; "." is a dimension that the function needs whole. What has one name is
        split together, and each device calls the function on its part. A name that operands alone
        have is summed over: what the devices get from their parts is added up.

    Returns:
      A decorator of a function of arrays that returns an array or a tuple of them. It must take
      parts as it takes the whole: its shapes come from its arguments. To `jax.grad` it is the
      function itself; give what jax cannot differentiate a `jax.custom_vjp` around it, whose
      forward and backward functions have rules of their own.

    Raises:
      ValueError: the rule does not read; where the function is called, its arrays are others.
    """
    read = Subscripts.parse(rule)

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def called(*operands: Any) -> Any:
            arrays = [jnp.asarray(x) for x in operands]
            shapes = jax.eval_shape(fn, *arrays)
            read.check(arrays, jax.tree.leaves(shapes))
            results = _OPERATION.bind(*arrays, fn=_Flat(fn), rule=read)
            return jax.tree.unflatten(jax.tree.structure(shapes), results)

        return called

    return decorate


@dataclasses.dataclass(frozen=True)
class _Flat:
    """A function that returns its results as a list; equal where the function is."""

    fn: Callable[..., Any]

    def __call__(self, *operands: Any) -> list[Any]:
        return jax.tree.leaves(self.fn(*operands))


@dataclasses.dataclass(frozen=True)
class _Mapped:
    """A flat function under `jax.vmap`, over the leading dimension of some operands."""

    fn: Callable[..., list[Any]]
    which: tuple[bool, ...]

    def __call__(self, *operands: Any) -> list[Any]:
        in_axes = tuple(0 if one else None for one in self.which)
        return jax.vmap(self.fn, in_axes=in_axes)(*operands)


_OPERATION = Primitive("operation")
_OPERATION.multiple_results = True


def _run(*operands: Any, fn: Callable[..., list[Any]], rule: Subscripts) -> list[Any]:
    del rule
    return fn(*operands)


@_OPERATION.def_abstract_eval
def _types(*operands: Any, fn: Callable[..., list[Any]], rule: Subscripts) -> list[Any]:
    del rule
    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
    return [jax.core.ShapedArray(x.shape, x.dtype) for x in jax.eval_shape(fn, *structs)]


def _differentiated(
    primals: Sequence[Any], tangents: Sequence[Any], *, fn: Any, rule: Subscripts
) -> Any:
    del rule
    return jax.jvp(fn, tuple(primals), tuple(map(ad.instantiate_zeros, tangents)))


def _mapped(
    operands: Sequence[Any], dims: Sequence[Any], *, fn: Any, rule: Subscripts
) -> tuple[list[Any], Iterable[int]]:
    which = tuple(dim is not None for dim in dims)
    moved = [
        jnp.moveaxis(x, dim, 0) if one else x
        for x, dim, one in zip(operands, dims, which, strict=True)
    ]
    results = _OPERATION.bind(*moved, fn=_Mapped(fn, which), rule=rule.mapped(which))
    return results, [0] * len(results)


_OPERATION.def_impl(_run)
mlir.register_lowering(_OPERATION, mlir.lower_fun(_run, multiple_results=True))
ad.primitive_jvps[_OPERATION] = _differentiated
batching.primitive_batchers[_OPERATION] = _mapped


@register("operation", "of the user's own", "as its rule says (`pt.register_rule`)")
def _rule(op: Any) -> Rule:
    subscripts = op.params["rule"]
    build = RuleBuilder(op)
    sides = (subscripts.operands, op.inputs), (subscripts.results, op.outputs)
    places: list[dict[str, list[tuple[int, int]]]] = [{}, {}]
    sizes: dict[str, int] = {}
    for found, (rule, values) in zip(places, sides, strict=True):
        for number, (names, value) in enumerate(zip(rule, values, strict=True)):
            for dim, name in enumerate(names):
                if name != WHOLE:
                    found.setdefault(name, []).append((number, dim))
                    sizes[name] = value.shape[dim]
    operands, results = places
    for name, size in sizes.items():
        monoid = "" if name in results else "sum"
        build.factor(size, operands.get(name, ()), results.get(name, ()), monoid)
    return build.rule()
