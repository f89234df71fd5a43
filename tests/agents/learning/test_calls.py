"""What XLA makes a kernel of: nothing that it shares out, nothing with operands that it drops."""

import operator
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata

from troupe.agents.learning import calls


@pytest.mark.parametrize("inputs", [1, 2, 3])
@pytest.mark.parametrize("steps", [1, 4, 8, 9, 12, 40])
def test_what_is_one_thread_is_not_shared_out(steps, inputs):
    """Of as many numbers as may be; and XLA's bound is where it is said to be."""

    def chain(*arrays):
        x = arrays[0]
        for i in range(steps):
            x = x * arrays[(i // 2 + 1) % inputs] if i % 2 else x + 0.5
        return x

    most = 1
    for bit in reversed(range(18)):
        shape = jax.ShapeDtypeStruct((most + 2**bit,), jnp.float32)
        most += 2**bit * calls.is_one_thread(shape, [shape] * inputs, steps)
    assert (most > 1) == (steps <= 4 * (1 + inputs))
    if most > 1:
        assert most == (2**17 - 1) // (2 + inputs)
        given = [jax.ShapeDtypeStruct((most,), jnp.float32)] * inputs
        assert "outer_dimension_partitions" not in jax.jit(chain).lower(*given).compile().as_text()


def needs_all(fn, *args):
    program = jax.make_jaxpr(fn)(*args).jaxpr
    written_out = calls.evaluation(program.eqns, program.invars, program.outvars)
    return calls.needs_all(written_out, args)


def as_float32(x):
    """With an equation even where it is that already."""
    return lax.convert_element_type_p.bind(
        x, new_dtype=np.dtype(np.float32), weak_type=False, sharding=None
    )


X = jnp.arange(4.0)
WITH_ALL = {
    "arithmetic": lambda x, y: (x * y + 1, jnp.exp(x - x) / y),
    "times zero": lambda x, y: 0.0 * x + y,
    "shapes": lambda x, y: (x[:2] + 1, y.reshape(2, 2)),
    "joined": lambda x, y: jnp.concatenate([x, y]) * 2,
    "of one kind": lambda x, y: as_float32(x) * y,
    "sums": lambda x, y: jnp.sum(x) / jnp.max(y),
    "greater": lambda x, y: jnp.maximum(x, 0.0) + jnp.minimum(y, jnp.maximum(x, y)),
    "infinite": lambda x, y: jnp.maximum(x, -jnp.inf) + jnp.minimum(y, jnp.inf),
    "clipped": lambda x, y: lax.clamp(0.5, x, 1.5) * y,
    "choice": lambda x, y: jnp.where(x > 0.5, x, y),
    "choice in a choice": lambda x, y: jnp.where(x > 0.5, jnp.where(x > 0.5, x, y), x),
    "choice by sign": lambda x, y: jnp.where(x > 0, x, y),
    "choice by a root": lambda x, y: jnp.where(jnp.sqrt(x) > 0.5, 1.0, y / x),
    "which is less": lambda x, y: jnp.where(x * y == jnp.minimum(x, y), x, y),
}
WITHOUT_SOME = {
    "is not read": lambda x, y: x + 1,
    "is read in vain": lambda x, y: (x + 1, y * 2)[0],
    "both cases one": lambda x, y: lax.select(x > 0.5, y, y),
    "cut off": lambda x, y: jnp.concatenate([x, y])[:4],
    "compared with itself": lambda x, y: jnp.where(x < x, x, y),
    "square below zero": lambda x, y: jnp.where(x * x < 0, x, y),
    "the zeroth power": lambda x, y: lax.integer_pow(x, 0) * y,
    "a constant": lambda x, y: (x + y, jnp.ones(4) * 2),
    "of other numbers": lambda x, y: (x + y, x > y),
    "of booleans": lambda x, y: (x > y).astype(jnp.float32),
}


@pytest.mark.parametrize("name", [*WITH_ALL, *WITHOUT_SOME])
def test_what_needs_all_of_its_operands(name):
    fn = {**WITH_ALL, **WITHOUT_SOME}[name]
    assert needs_all(fn, X, X) == (name in WITH_ALL)
    if name in WITH_ALL:
        found = jax.jit(lambda x, y: calls.one_kernel(fn, x * 2, y * 3))(X, X)
        expected = fn(X * 2, X * 3)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


ONE = [
    *(jnp.abs, jnp.exp, jnp.expm1, jnp.log, jnp.log1p, jnp.tanh, jax.nn.sigmoid, jnp.square),
    *(operator.neg, lax.sqrt, lax.rsqrt, lax.sign, lambda x: x**-1, lambda x: x**3),
    *(lambda x: x * 1.0, lambda x: 0.0 * x, lambda x: x + 0.0, lambda x: x / 1.0, lambda x: 2 - x),
    *(lambda x: jnp.maximum(x, 0.0), lambda x: jnp.maximum(x, jnp.inf)),
    *(lambda x: jnp.minimum(x, 1.0), lambda x: jnp.maximum(x, -jnp.inf)),
    *(lambda x: lax.clamp(-1.0, x, 1.0), lambda x: jnp.broadcast_to(jnp.sum(x), x.shape)),
    *(lambda x: jnp.broadcast_to(jnp.max(x), x.shape), lambda x: jnp.full(x.shape, 0.5)),
    *(lambda x: x[3:] + x, lambda x: x[:1] * jnp.ones(4), lambda x: x.reshape(2, 2)[0, 0] + x),
]
TWO = [
    *(lax.add, lax.sub, lax.mul, lax.div, lax.max, lax.min),
    *(lambda x, y, to=to: jnp.concatenate([x, y])[to : to + 4] for to in (0, 2, 4)),
]
COMPARED = [lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge]


def random_program(seed):
    """A function of two or three arrays of four numbers that gives one or two, of few steps."""
    inputs, steps = 2 + seed % 2, 2 + seed // 2 % 7

    def compute(*arrays):
        rng = random.Random(seed)
        known = list(arrays)
        for _ in range(steps):
            x, y, z, u = (rng.choice(known if rng.random() < 0.3 else known[-3:]) for _ in range(4))
            kind = rng.random()
            if kind < 0.3:
                made = rng.choice(ONE)(x)
            elif kind < 0.7:
                made = rng.choice(TWO)(x, y)
            else:
                y = y if rng.random() < 0.5 else jnp.full(4, rng.choice([0.0, 0.5, jnp.inf]))
                made = lax.select(rng.choice(COMPARED)(x, y), z, u)
            known.append(made)
        return known[inputs:][-1 - seed % 3 // 2 :]

    return compute, [X] * inputs


def test_of_random_programs_no_operand_is_dropped():
    """Of those that need all: XLA's program of each still reads every operand; as kernels, which it
    would not make else, they give the same numbers."""
    chosen = []
    for seed in range(3_000):
        fn, args = random_program(seed)
        if needs_all(fn, *args):
            chosen.append((fn, args))
    assert len(chosen) > 100
    inputs = [[jnp.exp(x * (0.3 + 0.2 * i)) - 1 for i, x in enumerate(args)] for _, args in chosen]

    def as_calls(inputs):
        made = []
        for (fn, _), args in zip(chosen, inputs, strict=True):
            with set_xla_metadata(inlineable="false"):
                made.append(jax.jit(fn)(*(jnp.cos(x) for x in args)))
        return made

    def as_kernels(inputs):
        return [
            calls.one_kernel(fn, *(jnp.cos(x) for x in args))
            for (fn, _), args in zip(chosen, inputs, strict=True)
        ]

    text = jax.jit(as_calls).lower(inputs).compile().as_text()
    called = re.findall(r' call\(.*to_apply=%([\w.\-]+),.*inlineable="false"', text)
    bodies = {part[1 : part.find(" ")]: part for part in text.split("\n\n")}
    operands = 0
    for name in called:
        for operand in re.findall(r"%([\w.\-]+) = \S+ parameter\(", bodies[name]):
            operands += 1
            uses = re.findall(rf"%{re.escape(operand)}(?![\w.\-])", bodies[name])
            assert len(uses) > 1, bodies[name]
    assert operands == sum(len(args) for _, args in chosen)
    found, expected = jax.jit(as_kernels)(inputs), jax.jit(as_calls)(inputs)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected
    )
