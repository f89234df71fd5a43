"""One printed expectation per op: which factor each dimension carries, and which factors reduce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from troupe.partitioning.ir.trace import trace
from troupe.partitioning.rules import rule_of
from troupe.partitioning.rules.shape import aligned_blocks


def _f(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _i(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _keys(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jax.random.key(0).dtype)


_NHWC = ("NHWC", "HWIO", "NHWC")
_ROWS = lax.GatherDimensionNumbers((1,), (0,), (0,))
_SCATTER = lax.ScatterDimensionNumbers((1,), (0,), (0,))

# op, function, shapes, expectation: "_" is a dimension needed whole, letters are factors.
CASES: list[tuple[str, Callable[..., Any], tuple[Any, ...], str]] = [
    ("sin", jnp.sin, (_f(4, 6),), "([a b]) -> ([a b]) a=4 b=6"),
    ("add", lax.add, (_f(4, 6), _f(4, 6)), "([a b], [a b]) -> ([a b]) a=4 b=6"),
    ("mul", lambda x: x * 2.0, (_f(4, 6),), "([a b], []) -> ([a b]) a=4 b=6"),
    (
        "select_n",
        lax.select_n,
        (jax.ShapeDtypeStruct((4,), bool), _f(4), _f(4)),
        "([a], [a], [a]) -> ([a]) a=4",
    ),
    ("clamp", lambda x: lax.clamp(0.0, x, 1.0), (_f(4),), "([], [a], []) -> ([a]) a=4"),
    ("convert_element_type", lambda x: x.astype(jnp.int32), (_f(4),), "([a]) -> ([a]) a=4"),
    (
        "dot_general",
        lambda x, y: jnp.einsum("bij,bjk->bik", x, y),
        (_f(2, 3, 4), _f(2, 4, 5)),
        "([a b d], [a d c]) -> ([a b c]) a=2 b=3 c=5 d=4 reduce d:sum",
    ),
    ("reduce_sum", lambda x: x.sum(0), (_f(4, 6),), "([a b]) -> ([b]) a=4 b=6 reduce a:sum"),
    ("reduce_max", lambda x: x.max(1), (_f(4, 6),), "([a b]) -> ([a]) a=4 b=6 reduce b:max"),
    ("reduce_min", lambda x: x.min(1), (_f(4, 6),), "([a b]) -> ([a]) a=4 b=6 reduce b:min"),
    (
        "reduce_and",
        lambda x: jnp.all(x, axis=0),
        (jax.ShapeDtypeStruct((4, 6), bool),),
        "([a b]) -> ([b]) a=4 b=6 reduce a:and",
    ),
    (
        "reduce_or",
        lambda x: jnp.any(x, axis=0),
        (jax.ShapeDtypeStruct((4, 6), bool),),
        "([a b]) -> ([b]) a=4 b=6 reduce a:or",
    ),
    ("reduce_prod", lambda x: x.prod(0), (_f(4, 6),), "([_ a]) -> ([a]) a=6"),
    ("argmax", lambda x: lax.argmax(x, 1, jnp.int32), (_f(4, 6),), "([a _]) -> ([a]) a=4"),
    (
        "transpose",
        lambda x: x.transpose(2, 0, 1),
        (_f(2, 3, 4),),
        "([b c a]) -> ([a b c]) a=4 b=2 c=3",
    ),
    ("squeeze", lambda x: x.squeeze(1), (_f(2, 1, 4),), "([a _ b]) -> ([a b]) a=2 b=4"),
    (
        "broadcast_in_dim",
        lambda x: lax.broadcast_in_dim(x, (5, 4, 6), (1, 2)),
        (_f(4, 1),),
        "([b _]) -> ([a b c]) a=5 b=4 c=6",
    ),
    ("reshape", lambda x: x.reshape(4, 12), (_f(4, 2, 6),), "([a b _]) -> ([a b]) a=4 b=2"),
    ("reshape", lambda x: x.reshape(2, 12), (_f(6, 4),), "([a _]) -> ([a _]) a=2"),
    (
        "concatenate",
        lambda x: jnp.concatenate([x, x], 1),
        (_f(4, 6),),
        "([a _], [a _]) -> ([a _]) a=4",
    ),
    (
        "pad",
        lambda x: lax.pad(x, 0.0, ((0, 0, 0), (1, 0, 0))),
        (_f(4, 6),),
        "([a _], []) -> ([a _]) a=4",
    ),
    ("slice", lambda x: lax.slice(x, (0, 1), (4, 3)), (_f(4, 6),), "([a _]) -> ([a _]) a=4"),
    ("rev", lambda x: lax.rev(x, (1,)), (_f(4, 6),), "([a _]) -> ([a _]) a=4"),
    ("split", lambda x: jnp.split(x, 2, 1), (_f(4, 6),), "([a _]) -> ([a _], [a _]) a=4"),
    ("iota", lambda: lax.broadcasted_iota(jnp.int32, (4, 6), 1), (), "() -> ([a b]) a=4 b=6"),
    (
        "dynamic_slice",
        lambda x, i: lax.dynamic_slice(x, (0, i), (4, 2)),
        (_f(4, 6), _i()),
        "([a _], [], []) -> ([a _]) a=4",
    ),
    (
        "dynamic_update_slice",
        lambda x, y, i: lax.dynamic_update_slice(x, y, (0, i)),
        (_f(4, 6), _f(4, 2), _i()),
        "([a _], [a _], [], []) -> ([a _]) a=4",
    ),
    (
        "gather",
        lambda x, i: lax.gather(x, i, _ROWS, (1, 6)),
        (_f(8, 6), _i(5, 1)),
        "([c b], [a _]) -> ([a b]) a=5 b=6 c=8 reduce c:sum",
    ),
    (
        "scatter-add",
        lambda x, i, u: lax.scatter_add(x, i, u, _SCATTER),
        (_f(8, 6), _i(5, 1), _f(5, 6)),
        "([c b], [a _], [a b]) -> ([c b]) a=5 b=6 c=8 reduce a:sum",
    ),
    (
        "scatter",
        lambda x, i, u: lax.scatter(x, i, u, _SCATTER),
        (_f(8, 6), _i(5, 1), _f(5, 6)),
        "([b a], [_ _], [_ a]) -> ([b a]) a=6 b=8",
    ),
    (
        "conv_general_dilated",
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=_NHWC),
        (_f(2, 8, 8, 4), _f(3, 3, 4, 6)),
        "([a _ _ c], [_ _ c b]) -> ([a _ _ b]) a=2 b=6 c=4 reduce c:sum",
    ),
    (
        "conv_general_dilated",
        lambda x, w: lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=_NHWC, feature_group_count=4
        ),
        (_f(2, 8, 8, 4), _f(3, 3, 1, 8)),
        "([b _ _ a], [_ _ _ a]) -> ([b _ _ a]) a=4 b=2",
    ),
    (
        "reduce_window_max",
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID"),
        (_f(4, 6),),
        "([a _]) -> ([a _]) a=4",
    ),
    ("sort", lambda x: lax.sort(x, dimension=1), (_f(4, 6),), "([a _]) -> ([a _]) a=4"),
    ("cumsum", lambda x: lax.cumsum(x, 1), (_f(4, 6),), "([a _]) -> ([a _]) a=4"),
    ("top_k", lambda x: lax.top_k(x, 2), (_f(4, 6),), "([a _]) -> ([a _], [a _]) a=4"),
    (
        "fft",
        lambda x: jnp.fft.fft(x),
        (jax.ShapeDtypeStruct((4, 6), jnp.complex64),),
        "([a _]) -> ([a _]) a=4",
    ),
    (
        "cholesky",
        lambda x: lax.linalg.cholesky(x, symmetrize_input=False),
        (_f(4, 3, 3),),
        "([a _ _]) -> ([a _ _]) a=4",
    ),
    (
        "triangular_solve",
        lambda x, y: lax.linalg.triangular_solve(x, y, left_side=True),
        (_f(4, 3, 3), _f(4, 3, 2)),
        "([a _ _], [a _ _]) -> ([a _ _]) a=4",
    ),
    (
        "random_wrap",
        jax.random.wrap_key_data,
        (jax.ShapeDtypeStruct((4, 2), jnp.uint32),),
        "([a _]) -> ([a]) a=4",
    ),
    (
        "random_bits",
        jax.vmap(lambda k: jax.random.bits(k, (6,))),
        (_keys(4),),
        "([a]) -> ([a b]) a=4 b=6",
    ),
    ("random_split", lambda k: jax.random.split(k, 4), (_keys(),), "([]) -> ([a]) a=4"),
    (
        "random_fold_in",
        jax.vmap(jax.random.fold_in),
        (_keys(4), _i(4)),
        "([a], [a]) -> ([a]) a=4",
    ),
]


@pytest.mark.parametrize(
    ("name", "fn", "shapes", "expected"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)
def test_rule(name: str, fn: Callable[..., Any], shapes: tuple[Any, ...], expected: str) -> None:
    op = next(op for op in trace(fn, *shapes).ops if op.name == name)
    rule = rule_of(op)
    assert rule is not None
    assert str(rule) == expected


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ((6, 4), (2, 12), [(2, 0, 0)]),
        ((2, 3, 4), (6, 4), [(2, 0, 0), (4, 2, 1)]),
        ((8,), (2, 4), [(2, 0, 0)]),
        ((1, 8), (8, 1), [(8, 1, 0)]),
        ((3, 4), (4, 3), []),
        ((0, 4), (4, 0), []),
        ((), (1, 1), []),
    ],
)
def test_aligned_blocks(source: Any, target: Any, expected: Any) -> None:
    assert aligned_blocks(source, target) == expected


def test_every_local_op_types() -> None:
    """Tiling each factor of each case in turn gives an op that jax accepts."""
    from troupe.partitioning.decide.graph import Graph
    from troupe.partitioning.decide.sharding import Decisions
    from troupe.partitioning.ir.verify import verify
    from troupe.partitioning.lower.lower import lower

    for _, fn, shapes, _ in CASES:
        program = trace(fn, *shapes)
        graph = Graph(program)
        for node in graph.nodes:
            if node.op is None:
                continue
            for factor, size in enumerate(node.rule.sizes):
                divisor = next((d for d in (2, 3, 5) if size % d == 0), None)
                if divisor is None:
                    continue
                state = Decisions({"x": divisor})
                state.set_node(node, "x", factor)
                local = lower(graph, state)
                verify(local, state.mesh, types=True)
                assert any(
                    op.name == "axis_offset"
                    or any("x" in axes for v in op.outputs for axes in v.layout or ())
                    or any(v.partial for v in op.outputs)
                    for op in local.ops
                )
