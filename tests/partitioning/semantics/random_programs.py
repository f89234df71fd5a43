"""Programs drawn at random from every family of rules, with random decisions on random values.

A program is a list of steps, each a jax function of a few earlier arrays. Inputs may hold NaN and
infinities, values may carry sharding hints, and the whole may run under other settings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from troupe import partitioning as pt

from .random_foreign import callback
from .random_steps import DISCRETE, FAMILIES, SIZES, Draw, Step

AXES = {"a": 2, "b": 2, "c": 2}

_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
#: Settings of jax that a caller may be within.
SETTINGS = {
    "none": contextlib.nullcontext,
    "x64": lambda: _x64(True),
    "matmul precision": lambda: jax.default_matmul_precision("float32"),
    "old threefry": lambda: jax.threefry_partitionable(False),
}
EXTREMES = (math.nan, math.inf, -math.inf, -0.0)


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
      extremes: (input, position, value) of values that are not finite.
      hints: the specs of `with_sharding_constraint` by the number of a step.
      named: True if hints name a mesh; else the mesh is the caller's.
      follow: an axis to follow the hints over, last of all tactics.
      setting: a name of `SETTINGS`.
    """

    shapes: list[tuple[int, ...]]
    rows: int
    steps: list[Step]
    differentiate: bool
    decisions: list[tuple[str, int, int, str]]
    extremes: list[tuple[int, int, float]]
    hints: dict[int, PartitionSpec]
    named: bool
    follow: str | None
    setting: str

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """Sets what the program is to be traced and called within."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(SETTINGS[self.setting]())
            if self.hints and not self.named:
                mesh = pt.Mesh(AXES).jax_mesh()
                stack.enter_context(jax.set_mesh(mesh) if hasattr(jax, "set_mesh") else mesh)
            yield

    def _hinted(self, value: jax.Array, number: int) -> jax.Array:
        spec: Any = self.hints.get(number)
        if spec is None:
            return value
        if self.named:
            spec = NamedSharding(pt.Mesh(AXES).jax_mesh(), spec)
        return jax.lax.with_sharding_constraint(value, spec)

    def forward(self, arrays: list[jax.Array], ints: jax.Array, key: jax.Array) -> list[jax.Array]:
        pool = list(arrays)
        for number, (fn, args) in enumerate(self.steps):
            value = self._hinted(fn(*[pool[i] for i in args], ints=ints, key=key), number)
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
        for index, place, value in self.extremes:
            flat = arrays[index].reshape(-1)
            arrays[index] = flat.at[place % flat.size].set(value).reshape(self.shapes[index])
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


def _draw_steps(
    draw: Draw, shapes: list[tuple[int, ...]], rows: int
) -> tuple[list[Step], list[tuple[int, ...]]]:
    """Draws steps behind inputs of these shapes; returns them and the shapes of their results."""
    ints = jax.ShapeDtypeStruct((rows,), jnp.arange(1).dtype)
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    known = list(shapes)
    types = [jax.ShapeDtypeStruct(shape, jnp.zeros(()).dtype) for shape in shapes]
    steps: list[Step] = []
    for _ in range(draw(st.integers(2, 8))):
        family = draw(st.sampled_from(FAMILIES))
        if family is callback and types[0].dtype == "float64":
            continue  # On several devices jax calls from threads that `enable_x64` does not reach.
        # Discrete ops read inputs alone: rounding must not decide an index.
        reach = len(shapes) if family in DISCRETE else len(known)
        first = draw(st.integers(0, reach - 1))
        made = family(draw, known, first)
        if made is None:
            continue
        fn, args = made
        try:
            result = jax.eval_shape(
                lambda *a, fn=fn: fn(*a[:-2], ints=a[-2], key=a[-1]),
                *[types[i] for i in args], ints, key,
            )  # fmt: skip
        except TypeError:  # Singles and doubles do not mix in every step.
            continue
        if result.size > 2000:
            continue
        steps.append((fn, args))
        known.append(result.shape)
        types.append(result)
    return steps, known[len(shapes) :]


def _draw_hints(draw: Draw, shapes: list[tuple[int, ...]]) -> dict[int, PartitionSpec]:
    """Draws specs for some of the results; every axis divides what it is named for."""
    hints = {}
    for number in draw(st.lists(st.integers(0, 7), max_size=3)):
        if number < len(shapes) and shapes[number]:
            axes = draw(st.permutations(sorted(AXES)))
            spec = [
                axis if n % AXES[axis] == 0 and draw(st.booleans()) else None
                for n, axis in zip(shapes[number], axes, strict=False)
            ]
            hints[number] = PartitionSpec(*spec)
    return hints


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
    setting = draw(st.sampled_from(("none", *SETTINGS)))
    with SETTINGS[setting]():
        steps, results = _draw_steps(draw, shapes, rows)
    decisions = []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(("input", "input", "tag")))
        index = draw(st.integers(0, max((len(shapes) if kind == "input" else len(steps)) - 1, 0)))
        decisions.append(
            (kind, index, draw(st.integers(-1, 2)), draw(st.sampled_from(sorted(AXES))))
        )
    extreme = st.tuples(
        st.integers(0, len(shapes) - 1), st.integers(0, 511), st.sampled_from(EXTREMES)
    )
    hints = _draw_hints(draw, results)
    hinted = sorted({axis for spec in hints.values() for axis in spec if axis})
    return Drawn(
        shapes,
        rows,
        steps,
        draw(st.booleans()),
        decisions,
        extremes=draw(st.lists(extreme, max_size=3)),
        hints=hints,
        named=draw(st.booleans()),
        follow=draw(st.sampled_from([None, *hinted])),
        setting=setting,
    )


def schedule(drawn: Drawn) -> list[Any]:
    """The drawn decisions as one tactic per run of equal axes."""
    tactics: list[Any] = []
    for kind, index, what, axis in drawn.decisions:
        if not tactics or tactics[-1].axis != axis:
            tactics.append(DrawnTactic(f"draw {len(tactics)}", axis, []))
        tactics[-1].drawn.append((kind, index, what))
    if drawn.follow:
        tactics.append(pt.tactics.hints(drawn.follow))
    return tactics
