"""Programs drawn at random from every family of rules, with random decisions on random values.

A program is a list of steps, each a jax function of a few earlier arrays.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import strategies as st

from troupe import partitioning as pt

from .random_steps import DISCRETE, FAMILIES, SIZES, Draw, Step

AXES = {"a": 2, "b": 2, "c": 2}


@dataclasses.dataclass
class Drawn:
    """A drawn program.

    Attributes:
      shapes: of the float inputs.
      rows: the length of the integer input, whose values are below `bound`.
      steps: what to compute.
      differentiate: whether the gradient with respect to the float inputs is asked for too.
      decisions: (kind, index, what, axis): "input" or "tag" number index tiled on dimension `what`
        (or replicated, for -1) over the axis.
    """

    shapes: list[tuple[int, ...]]
    rows: int
    steps: list[Step]
    differentiate: bool
    decisions: list[tuple[str, int, int, str]]

    def forward(self, arrays: list[jax.Array], ints: jax.Array, key: jax.Array) -> list[jax.Array]:
        pool = list(arrays)
        for number, (fn, args) in enumerate(self.steps):
            value = fn(*[pool[i] for i in args], ints=ints, key=key)
            pool.append(pt.tag(value, f"v{number}"))
        return pool

    def function(self, state: Any, ints: jax.Array, key: jax.Array) -> Any:
        pool = self.forward(state, ints, key)
        results: Any = pool[len(state) :]
        if self.differentiate:

            def loss(arrays: list[jax.Array]) -> jax.Array:
                made = self.forward(arrays, ints, key)[len(state) :]
                return sum((jnp.sum(jnp.sin(v)) for v in made[-3:]), jnp.float32(0))

            results = results, jax.grad(loss)(state)
        return results

    def inputs(self, seed: int) -> tuple[Any, ...]:
        *keys, last = jax.random.split(jax.random.PRNGKey(seed), len(self.shapes) + 1)
        arrays = [jax.random.normal(k, s) for k, s in zip(keys, self.shapes, strict=True)]
        ints = jax.random.randint(last, (self.rows,), 0, 8)
        return arrays, ints, jax.random.PRNGKey(seed + 1)


@dataclasses.dataclass
class DrawnTactic:
    """A tactic of decisions drawn for one axis; those that do not fit are left out."""

    name: str
    axis: str
    drawn: list[tuple[str, int, int]]

    def actions(self, context: pt.Context) -> list[pt.Action]:
        tags = {
            op.params["name"]: op.outputs[0]
            for op in context.graph.program.walk()
            if op.name == "name"
        }
        found = []
        for kind, index, what in self.drawn:
            value = context.inputs[index] if kind == "input" else tags.get(f"v{index}")
            if value is None or not value.shape:
                continue
            if what < 0:
                found.append(pt.Action(value, self.axis, pt.REPLICATED))
            elif what < value.ndim and context.state.divides(value, what, self.axis):
                found.append(pt.Action(value, self.axis, what))
        return found


@st.composite
def programs(draw: Draw) -> Drawn:
    """Draws a program of two to eight steps."""
    count = draw(st.integers(1, 3))
    shapes = [
        tuple(draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3))) for _ in range(count)
    ]
    if draw(st.booleans()):  # products and sums need partners
        shapes.append(shapes[0])
    rows = draw(st.sampled_from((4, 8, 6, 3)))
    known = list(shapes)
    steps: list[Step] = []
    inputs = len(shapes)
    for _ in range(draw(st.integers(2, 8))):
        family = draw(st.sampled_from(FAMILIES))
        # Discrete ops read inputs alone: rounding must not decide an index.
        reach = inputs if family in DISCRETE else len(known)
        first = draw(st.integers(0, reach - 1))
        made = family(draw, known, first)
        if made is None:
            continue
        fn, args = made
        operands = [jax.ShapeDtypeStruct(known[i], jnp.float32) for i in args]
        ints = jax.ShapeDtypeStruct((rows,), jnp.int32)
        key = jax.ShapeDtypeStruct((2,), jnp.uint32)
        shape = jax.eval_shape(
            lambda *a, fn=fn: fn(*a[:-2], ints=a[-2], key=a[-1]), *operands, ints, key
        )
        if shape.size > 2000:
            continue
        steps.append((fn, args))
        known.append(shape.shape)
    decisions = []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(("input", "input", "tag")))
        index = draw(st.integers(0, max((inputs if kind == "input" else len(steps)) - 1, 0)))
        decisions.append(
            (kind, index, draw(st.integers(-1, 2)), draw(st.sampled_from(sorted(AXES))))
        )
    return Drawn(shapes, rows, steps, draw(st.booleans()), decisions)


def schedule(drawn: Drawn) -> list[DrawnTactic]:
    """The drawn decisions as one tactic per run of equal axes."""
    tactics: list[DrawnTactic] = []
    for kind, index, what, axis in drawn.decisions:
        if not tactics or tactics[-1].axis != axis:
            tactics.append(DrawnTactic(f"draw {len(tactics)}", axis, []))
        tactics[-1].drawn.append((kind, index, what))
    return tactics
