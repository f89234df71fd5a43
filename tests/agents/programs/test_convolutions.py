"""Convolutions are put into the order that XLA computes fast on CPU, and mean the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core as jex_core

from troupe.agents.programs import convolutions

LAYOUTS = [
    ("NHWC", "HWIO", "NHWC"),
    ("NCHW", "OIHW", "NCHW"),
    ("CHWN", "IHWO", "HWNC"),
    ("NWC", "WIO", "NCW"),
]
OPTIONS = [
    {},
    {"window_strides": (2,), "padding": "SAME"},
    {"rhs_dilation": (2,)},
    {"lhs_dilation": (2,), "padding": ((2, 1),)},
    {"feature_group_count": 2},
    {"batch_group_count": 2},
]


def convolution(layout, options):
    """A convolution and operands for it: 4 images of 9 (x 7) and 4 features, 6 kernels of 3."""
    rank = len(layout[0])
    options = {
        name: value * (rank - 2) if isinstance(value, tuple) else value
        for name, value in options.items()
    }
    groups = options.get("feature_group_count", 1)
    sizes = {"N": 4, "C": 4, "H": 9, "W": 7}
    kernel = {"I": 4 // groups, "O": 6, "H": 3, "W": 3}
    random = np.random.default_rng(0)
    x = random.normal(size=[sizes[name] for name in layout[0]]).astype(np.float32)
    k = random.normal(size=[kernel[name] for name in layout[1]]).astype(np.float32)
    options = {"window_strides": (1,) * (rank - 2), "padding": "VALID", **options}
    return lambda x, k: lax.conv_general_dilated(x, k, dimension_numbers=layout, **options), x, k


CPU = jax.devices("cpu")[0]


def all_equations(program):
    program = getattr(program, "jaxpr", program)
    for equation in program.eqns:
        yield equation
        for inner in jax.tree.leaves([*equation.params.values()], is_leaf=is_program):
            if is_program(inner):
                yield from all_equations(inner)


def is_program(part):
    return isinstance(part, jex_core.ClosedJaxpr | jex_core.Jaxpr)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options) or "plain")
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "-".join(layout))
def test_values_and_gradients_stay(layout, options):
    fn, x, k = convolution(layout, options)

    def loss(x, k):
        return jnp.sum(fn(x, k) ** 2)

    both = jax.value_and_grad(loss, (0, 1))
    expected = jax.jit(both)(x, k)
    found = jax.jit(convolutions.for_device(both, CPU))(x, k)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4), found, expected
    )


def test_all_are_reordered_wherever_they_stand():
    """In loops, branches, calls and checkpoints; what is computed around them is left alone."""
    fn, x, k = convolution(("NHWC", "HWIO", "NHWC"), {"padding": "SAME"})
    grown = jax.grad(jax.checkpoint(lambda x, k: jnp.sum(fn(x, k) ** 2)), (0, 1))

    def program(x, k):
        def body(carry, _):
            x, k = carry
            dx, dk = jax.jit(grown)(x, k)
            x, k = lax.cond(x.sum() > 0, lambda: (x - dx, k - dk), lambda: grown(x, k))
            return (x, k), x.sum()

        (x, k), sums = lax.scan(body, (x, k), length=2)
        return lax.while_loop(
            lambda c: c[2] < 2, lambda c: (*grown(c[0], c[1]), c[2] + 1), (x, k, 0)
        ), sums

    before = list(all_equations(jax.make_jaxpr(program)(x, k)))
    after = list(all_equations(jax.make_jaxpr(convolutions.for_device(program, CPU))(x, k)))
    kind = lax.conv_general_dilated_p
    convolved = [eqn.params["dimension_numbers"] for eqn in after if eqn.primitive is kind]
    assert len(convolved) == sum(eqn.primitive is kind for eqn in before) > 4
    assert len({eqn.params["dimension_numbers"] for eqn in before if eqn.primitive is kind}) > 1
    assert set(convolved) == {lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))}


def test_keys_and_structures_pass():
    def fn(state, batch):
        key, draw = jax.random.split(state["key"])
        return {"key": key}, (batch, jax.random.normal(draw))

    state = {"key": jax.random.key(1)}
    expected, found = fn(state, None), jax.jit(convolutions.for_device(fn, CPU))(state, None)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert found[1][1] == expected[1][1]
    assert jnp.all(jax.random.key_data(found[0]["key"]) == jax.random.key_data(expected[0]["key"]))


def test_programs_in_named_tuples_stay():
    """A linear solve of the user's has its programs in one."""

    def solve(a, b):
        return jax.lax.custom_linear_solve(
            lambda x: a @ x, b, lambda _, y: jnp.linalg.solve(a, y), symmetric=True
        )

    a, b = jnp.eye(3) * 2.0, jnp.ones(3)
    run = jax.jit(convolutions.for_device(solve, jax.devices("cpu")[0]))
    assert (run(a, b) == 0.5).all()
