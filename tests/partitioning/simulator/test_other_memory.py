"""Predicted memory of steps as other people write them, against what the compiler allocates."""

import itertools
import os
import statistics

import jax
import jax.numpy as jnp
import pytest

from troupe import partitioning as pt
from troupe.partitioning.simulator.memory import memory_of

from . import other_agents, other_numerics, other_sequences

FULL = bool(os.environ.get("TROUPE_FULL"))
STEPS = {**other_sequences.STEPS, **other_agents.STEPS, **other_numerics.STEPS}
#: Code generation is most of a compilation and comes after buffers are assigned.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
SMALLEST = 1 << 20
NEWER = tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 7)

#: Steps that are predicted worse than the others, over eight devices or on one, with the error
#: that jax 0.6 and jax 0.12 showed.
KNOWN = {
    ("distinct_rows", 1): 0.23,
    **({} if NEWER else {("message_passing", 8): 0.26}),
}


def _names(step):
    return step.__code__.co_varnames[: step.__code__.co_argcount]


def _error(name, devices):
    """The relative error of the peak, and the compiler's peak in bytes."""
    step, args = STEPS[name]()
    donated = tuple(n for n in _names(step) if n == "state")
    schedule = [pt.Manual("batch", {"batch": 0}, "data")] if devices > 1 else []
    parts = pt.partition(step, pt.Mesh({"data": devices}), schedule, donate=donated)
    program = parts.plan(*args).program
    if devices > 1:
        lowered = parts.compile(*args).lower()
    else:
        places = [i for i, n in enumerate(_names(step)) if n in donated]
        lowered = jax.jit(step, donate_argnums=places).lower(*args)
    found = lowered.compile(compiler_options=QUICK).memory_analysis()
    total = (
        found.argument_size_in_bytes + found.output_size_in_bytes
        + found.temp_size_in_bytes - found.alias_size_in_bytes
    )  # fmt: skip
    return memory_of(program, donated).peak / total - 1, total


#: One step of each kind that was predicted too low: what was missing, and the bound.
KINDS = {
    "sparse_forward": 0.05,  # what sparse products consist of
    "complex_scan_forward": 0.05,  # code that would be written out too often is not fused
    "message_passing": 0.05,  # scatters onto one array of zeros copy it
    "embedding_bags": 0.05,  # what is added to a scatter is scattered onto
    "evolution": 0.05,  # the function behind normal numbers takes two arrays on its way
    "denoised": 0.05,
    "contrastive": 0.05,
    "group_relative_policy": 0.05,  # products are flat, and what follows works on views
    "decoding": 0.05,  # products read transposed matrices as they lie
    "nearest_neighbours": 0.05,
    "graph_attention": 0.05,  # what is read through a view is not written over
    "rooted": 0.05,  # eigenvectors are written over the matrix, and read through a copy
    "half_precision_blocks": 0.1,  # a library multiplies bfloat16 as it is
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_that_were_wrong(name):
    error, _ = _error(name, 1)
    assert abs(error) <= KINDS[name]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Casting complex values to real")  # jax 0.6, of gradients
def test_memory_of_what_others_write():
    """With TROUPE_FULL=1 of all steps, else of every third."""
    errors = {}
    for name in itertools.islice(STEPS, 0, None, 1 if FULL else 3):
        for devices in (1, 8) if "batch" in _names(STEPS[name]()[0]) else (1,):
            error, total = _error(name, devices)
            if total >= SMALLEST:
                errors[name, devices] = error
    assert len(errors) >= (70 if FULL else 23)
    sizes = sorted(abs(error) for error in errors.values())
    assert statistics.median(sizes) <= 0.01
    if FULL or NEWER:  # Of a third, the two that jax 0.6 has are a larger part.
        assert sum(size <= 0.15 for size in sizes) >= 0.95 * len(sizes)
    for case, error in errors.items():
        known = KNOWN.get(case, 0.0)
        assert -0.1 + min(known, 0.0) <= error <= 0.15 + max(known, 0.0), (case, error)


def test_a_sparse_product_is_what_it_consists_of():
    step, args = STEPS["sparse_forward"]()
    names = {op.name for op in pt.trace(step, *args).walk()}
    assert "bcoo_dot_general" not in names
    assert {"gather", "scatter-add"} <= names


def test_a_transposed_matrix_is_read_as_it_lies():
    x = jax.ShapeDtypeStruct((64, 32), jnp.float32)
    table = jax.ShapeDtypeStruct((4096, 32), jnp.float32)
    assert memory_of(pt.trace(lambda x, table: x @ table.T, x, table)).temporaries == 0


def _clipped(x, scale):
    g = jnp.swapaxes(jnp.tanh(x), 1, 2)
    return (g * jax.lax.rsqrt(jnp.square(g).sum((1, 2)))[:, None, None]).sum(0)


def _summed(x, scale):
    return (jnp.swapaxes(jnp.tanh(x), 1, 2) * scale[:, None, None]).sum(0)


def _needed_elsewhere(x, scale):
    g = jnp.swapaxes(x * x, 1, 2)
    return g.sum(0), jnp.square(g).sum((1, 2))


def _squared(x, scale):
    g = jnp.swapaxes(jnp.tanh(x), 1, 2)
    return jnp.square(g).sum(0), (g * scale[:, None, None]).sum(0)


@pytest.mark.skipif(not NEWER, reason="earlier compilers leave no reduction to a library")
@pytest.mark.parametrize("rows", [32, 64])
@pytest.mark.parametrize("function", [_clipped, _summed, _needed_elsewhere, _squared])
def test_transposes_move_behind_what_reads_them(function, rows):
    """Behind elementwise operations, if these are all that reads them, and sums of few rows."""
    shapes = jax.ShapeDtypeStruct((rows, 64, 64), jnp.float32), jax.ShapeDtypeStruct((rows,), "f4")
    compiled = jax.jit(function).lower(*shapes).compile(compiler_options=QUICK).memory_analysis()
    predicted = memory_of(pt.trace(function, *shapes), ()).temporaries
    assert predicted == pytest.approx(compiled.temp_size_in_bytes, rel=0.04)


def test_reductions_by_functions_of_ones_own_read_what_was_transposed():
    def step(x):
        g = 2.0 * jnp.swapaxes(x, 1, 2)
        pairs = jax.lax.reduce(
            (g, g * g), (0.0, 1.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (0,)
        )
        return pairs, jax.lax.reduce(g, 1.0, lambda a, b: a * b + 1.0, (0,)), jnp.argmax(g, 0)

    x = jax.ShapeDtypeStruct((32, 64, 64), jnp.float32)
    assert memory_of(pt.trace(step, x), ()).temporaries >= 4 * 32 * 64 * 64


@pytest.mark.parametrize("shape", [(256, 256), (4, 128, 128)])
def test_a_routine_for_factors_writes_over_a_copy_by_columns(shape):
    """Of a product, which lies by rows; eigenvectors are read from where they were written."""

    def determinant(x):
        return jnp.linalg.slogdet(x @ jnp.swapaxes(x, -1, -2))[1]

    def filtered(x):
        values, vectors = jnp.linalg.eigh(x)
        return (vectors * values[..., None, :]) @ jnp.swapaxes(vectors, -1, -2)

    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    for step in (determinant, filtered):
        compiled = jax.jit(step).lower(x).compile(compiler_options=QUICK).memory_analysis()
        predicted = memory_of(pt.trace(step, x), ()).temporaries
        assert predicted == pytest.approx(compiled.temp_size_in_bytes, rel=0.02)
