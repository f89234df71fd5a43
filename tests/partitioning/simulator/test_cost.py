"""FLOPs of ops against hand counts and against the compiler's own count."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from troupe.agents import examples
from troupe.partitioning import trace
from troupe.partitioning.simulator import costs

from . import foreign

F32 = jnp.float32


def spec(*shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize(
    ("fn", "args", "flops"),
    [
        (lambda x, y: x @ y, (spec(4, 5), spec(5, 6)), 2 * 4 * 5 * 6),
        (
            lambda x, y: jnp.einsum("bij,bjk->bik", x, y),
            (spec(3, 4, 5), spec(3, 5, 6)),
            2 * 3 * 4 * 5 * 6,
        ),
        (lambda x, y: x + y * x, (spec(7, 3), spec(7, 3)), 2 * 21),
        (lambda x: x.sum(0), (spec(8, 3),), 21),
        (lambda x: jnp.tanh(x), (spec(8, 3),), 0),
        (lambda x: lax.scan(lambda c, r: (c + r, None), jnp.zeros(4), x)[0], (spec(9, 4),), 9 * 4),
        (lambda x: x.reshape(6).T, (spec(2, 3),), 0),
    ],
)
def test_hand_counts(fn, args, flops):
    assert costs.program_flops(trace(fn, *args)) == flops


def test_a_loop_is_counted_once_on_request():
    program = trace(lambda x: lax.fori_loop(0, 5, lambda i, y: y @ y, x), spec(4, 4))
    assert costs.program_flops(program) >= 5 * 128
    assert costs.program_flops(program, loops_once=True) < 2 * 128


def test_of_branches_the_costliest_counts():
    program = trace(
        lambda p, x: lax.cond(p, lambda y: y @ y, lambda y: y, x), spec(dtype=bool), spec(4, 4)
    )
    assert costs.program_flops(program) >= 128
    assert costs.program_flops(program) < 256


def test_padding_is_not_multiplied():
    def convolve(x, w):
        return lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))

    program = trace(convolve, spec(2, 5, 3), spec(3, 3, 7))
    taps = 3 * 5 - 2
    assert costs.program_flops(program) == 2 * 2 * 3 * 7 * taps


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("mlp", {"batch": 64, "width": 64, "hidden": 256}),
        (
            "transformer",
            {"width": 64, "length": 32, "vocabulary": 128, "num_layers": 2, "optimizer": "adam"},
        ),
        ("residual_net", {"batch": 8, "size": 16, "width": 16}),
        ("dqn", {"batch_size": 64, "hidden_sizes": (64, 64)}),
        ("lstm", {"batch": 16, "hidden": 64}),
    ],
)
def test_totals_meet_the_compilers_count(model, sizes):
    """Before optimisation the compiler counts each op once, as we do; loops once."""
    example = examples.make(model, **sizes)
    args = example.state_shapes, example.batch_shapes
    program = trace(lambda state, batch: example.update(state, batch), *args)
    theirs = jax.jit(example.update).lower(*args).cost_analysis()["flops"]
    assert costs.program_flops(program, loops_once=True) == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize("name", sorted(foreign.STEPS))
def test_totals_of_other_steps_meet_the_compilers_count(name):
    """But for factorizations, which a CPU's library does uncounted."""
    update, *args = foreign.STEPS[name]()
    program = trace(lambda state, batch: update(state, batch), *args)
    ours = costs.program_flops(program, loops_once=True)
    ours -= sum(
        costs.op_flops(op)[0]
        for op in program.walk()
        if op.name in ("cholesky", "triangular_solve")
    )
    theirs = jax.jit(update).lower(*args).cost_analysis()["flops"]
    assert ours == pytest.approx(theirs, rel=0.01)


def test_of_branches_that_differ_by_platform_the_devices_own_counts():
    program = trace(
        lambda x: lax.platform_dependent(x, tpu=lambda y: y @ y, default=lambda y: y), spec(4, 4)
    )
    assert costs.program_flops(program) == 0
    assert costs.program_flops(program, kind="tpu") == 128
