"""Convolutions, products and activations in the forms that XLA computes fast on CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from troupe.agents.learning import gathering, optimizers
from troupe.agents.programs import convolutions as kernels

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


def all_equations(program):
    program = getattr(program, "jaxpr", program)
    for equation in program.eqns:
        yield equation
        for inner in gathering.programs_in(equation):
            yield from all_equations(inner)


@pytest.fixture(params=[True, False], ids=["old", "new"])
def version(request, monkeypatch):
    """Forms for jax 0.6 mean the same with any."""
    monkeypatch.setattr(kernels, "_IS_OLD", request.param)
    return request.param


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options) or "plain")
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "-".join(layout))
def test_values_and_gradients_stay(layout, options, version):
    fn, x, k = convolution(layout, options)

    def loss(x, k):
        return jnp.sum(fn(x, k) ** 2)

    both = jax.value_and_grad(loss, (0, 1))
    expected = jax.jit(both)(x, k)
    found = jax.jit(kernels.for_cpu(both))(x, k)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4), found, expected
    )


GAPS = [
    {"rhs_dilation": (2, 3)},
    {"rhs_dilation": (4, 1), "padding": ((2, 3), (1, 0))},
    {"rhs_dilation": (2, 2), "padding": ((0, -1), (-1, -1))},
    {"rhs_dilation": (1, 2), "padding": "SAME"},
]


@pytest.mark.parametrize("options", GAPS, ids=str)
def test_kernels_with_gaps_are_computed_by_phases(options, monkeypatch):
    monkeypatch.setattr(kernels, "_IS_OLD", True)
    random = np.random.default_rng(1)
    x = random.normal(size=(3, 17, 14, 5)).astype(np.float32)
    k = random.normal(size=(3, 3, 5, 2)).astype(np.float32)
    options = {"window_strides": (1, 1), "padding": "VALID", **options}

    def fn(x, k):
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, k, dimension_numbers=layout, **options)

    program = jax.make_jaxpr(kernels.for_cpu(fn))(x, k)
    kind = lax.conv_general_dilated_p
    (found,) = [eqn for eqn in all_equations(program) if eqn.primitive is kind]
    assert found.params["rhs_dilation"] == (1, 1)
    np.testing.assert_allclose(jax.jit(kernels.for_cpu(fn))(x, k), fn(x, k), atol=2e-5)


@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("size", [12, 13])
def test_the_gradient_of_a_strided_kernel_has_no_gaps(stride, size, monkeypatch):
    monkeypatch.setattr(kernels, "_IS_OLD", True)
    random = np.random.default_rng(2)
    x = random.normal(size=(6, size, size + 1, 4)).astype(np.float32)
    k = random.normal(size=(4, 4, 4, 8)).astype(np.float32)

    def loss(k):
        layout, strides = ("NHWC", "HWIO", "NHWC"), (stride, stride)
        return jnp.sum(
            lax.conv_general_dilated(x, k, strides, "VALID", dimension_numbers=layout) ** 2
        )

    program = jax.make_jaxpr(kernels.for_cpu(jax.grad(loss)))(k)
    kind = lax.conv_general_dilated_p
    found = [eqn.params["rhs_dilation"] for eqn in all_equations(program) if eqn.primitive is kind]
    assert set(found) == {(1, 1)}
    expected = jax.grad(loss)(k)
    atol = 1e-5 * float(jnp.max(jnp.abs(expected)))
    np.testing.assert_allclose(jax.jit(kernels.for_cpu(jax.grad(loss)))(k), expected, atol=atol)


PRODUCTS = ["ik,jk->ij", "ik,kj->ij", "ki,kj->ij", "bik,bjk->bij", "bik,bkj->bij", "ib,jb->bij"]


@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.parametrize("equation", PRODUCTS)
def test_products_stay_and_the_larger_operand_comes_first(equation, rows, version):
    sizes = {"i": rows, "j": 5, "k": 4, "b": 2}
    random = np.random.default_rng(3)
    names = equation.split("->")[0]
    lhs, rhs = (random.normal(size=[sizes[n] for n in part]) for part in names.split(","))
    lhs, rhs = np.float32(lhs), np.float32(rhs)

    def multiply(lhs, rhs):
        return jnp.einsum(equation, lhs, rhs)

    found = jax.jit(kernels.for_cpu(multiply))(lhs, rhs)
    np.testing.assert_allclose(found, multiply(lhs, rhs), atol=1e-5)
    program = jax.make_jaxpr(kernels.for_cpu(multiply))(lhs, rhs)
    (product,) = [eqn for eqn in all_equations(program) if eqn.primitive is lax.dot_general_p]
    first, second = (variable.aval.shape for variable in product.invars)
    if version and equation.replace("b", "") == "ik,jk->ij":
        assert 2 * first[-2] > second[-2]
    assert sum(eqn.primitive is lax.dot_general_p for eqn in all_equations(program)) == 1


THIN = [(64, 2, 96), (64, 4, 96), (64, 96, 6), (6, 96, 64), (2, 96, 64)]
NOT_THIN = [(1, 96, 64), (64, 96, 1), (64, 96, 64)]


@pytest.mark.parametrize("of_lhs", [0, 1])
@pytest.mark.parametrize("of_rhs", [0, 1])
@pytest.mark.parametrize("sizes", [*THIN, *NOT_THIN], ids=str)
def test_thin_products_stay_and_are_computed_by_vectors(sizes, of_lhs, of_rhs, version):
    rows, depth, columns = sizes
    random = np.random.default_rng(4)
    lhs, rhs = random.normal(size=(rows, depth)), random.normal(size=(depth, columns))
    lhs, rhs = np.float32(lhs), np.float32(rhs)
    given = (lhs if of_lhs else lhs.T, rhs.T if of_rhs else rhs)

    def multiply(lhs, rhs):
        return lax.dot_general(lhs, rhs, (((of_lhs,), (of_rhs,)), ((), ())))

    found = jax.jit(kernels.for_cpu(multiply))(*given)
    np.testing.assert_allclose(found, lhs @ rhs, atol=2e-5)
    both = jax.grad(lambda lhs, rhs: jnp.sum(multiply(lhs, rhs) ** 2), (0, 1))
    for_lhs, for_rhs = jax.jit(kernels.for_cpu(both))(*given)
    error = 2 * lhs @ rhs
    np.testing.assert_allclose(for_lhs if of_lhs else for_lhs.T, error @ rhs.T, atol=2e-3)
    np.testing.assert_allclose(for_rhs.T if of_rhs else for_rhs, lhs.T @ error, atol=2e-3)
    program = jax.make_jaxpr(kernels.for_cpu(multiply))(*given)
    ranks = [
        [v.aval.ndim for v in eqn.invars]
        for eqn in all_equations(program)
        if eqn.primitive is lax.dot_general_p
    ]
    if version and depth <= 4:
        assert ranks == []
    elif version and min(rows, columns) == 6 and (columns == 6 or of_rhs):
        assert [sum(some) for some in ranks] == [3] * 6
    elif version and rows == 2:
        assert [sum(some) for some in ranks] == [3] * 2
    elif min(rows, columns) > 6 or not version:
        assert ranks == [[2, 2]]


@pytest.mark.parametrize("columns", [12, 13])
def test_products_of_few_transposed_rows_are_straight(columns, version):
    """Of which XLA would make one of two transposed operands."""
    random = np.random.default_rng(4)
    lhs, rhs = random.normal(size=(96, 128)), random.normal(size=(128, columns))
    lhs, rhs = np.float32(lhs), np.float32(rhs)

    def multiply(lhs, rhs):
        return lax.dot_general(lhs, rhs.T, (((1,), (1,)), ((), ()))).T

    found = jax.jit(kernels.for_cpu(multiply))(lhs, rhs)
    np.testing.assert_allclose(found, (lhs @ rhs).T, atol=5e-5)
    equations = all_equations(jax.make_jaxpr(kernels.for_cpu(multiply))(lhs, rhs))
    (product,) = [eqn for eqn in equations if eqn.primitive is lax.dot_general_p]
    shape = product.invars[1].aval.shape
    assert shape == ((128, 12) if version and columns == 12 else (columns, 128))


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("sizes", [(128, 256, 128), (128, 257, 128), (128, 256, 127)], ids=str)
def test_operands_whose_rows_are_whole_kilobytes_are_transposed_before(sizes, members, version):
    rows, depth, columns = sizes
    random = np.random.default_rng(4)
    lhs = np.float32(random.normal(size=(members, rows, depth)))
    rhs = np.float32(random.normal(size=(members, columns, depth)))

    def multiply(lhs, rhs):
        both = (2,), (2,)
        if members == 1:
            return lax.dot_general(lhs[0], rhs[0], (((1,), (1,)), ((), ())))
        return lax.dot_general(lhs, rhs, (both, ((0,), (0,))))

    found = jax.jit(kernels.for_cpu(multiply))(lhs, rhs)
    expected = np.einsum("eik,ejk->eij", lhs, rhs)
    np.testing.assert_allclose(found, expected[0] if members == 1 else expected, atol=2e-4)
    for is_alone in (True, False):
        program = jax.make_jaxpr(kernels.for_cpu(multiply, is_alone=is_alone))(lhs, rhs)
        equations = list(all_equations(program))
        (product,) = [eqn for eqn in equations if eqn.primitive is lax.dot_general_p]
        is_turned = version and is_alone and sizes == (128, 256, 128)
        assert product.invars[1].aval.shape[-2] == (depth if is_turned else columns)
        assert any(eqn.primitive is lax.cond_p for eqn in equations) == is_turned


SUMS = [((64, 96), 0), ((64, 96), 1), ((4, 32, 96), (0, 1)), ((4, 32, 96), (1, 2))]
OTHER_SUMS = [((4, 32, 96), 1), ((64, 96), None), ((8, 8), 0), ((1024, 8), 1)]


@pytest.mark.parametrize(("shape", "axis"), [*SUMS, *OTHER_SUMS], ids=str)
def test_sums_stay_and_many_are_products(shape, axis, version):
    x = np.random.default_rng(5).normal(size=shape).astype(np.float32)

    def total(x):
        return jnp.sum(x, axis)

    np.testing.assert_allclose(jax.jit(kernels.for_cpu(total))(x), np.sum(x, axis), atol=1e-3)
    program = jax.make_jaxpr(kernels.for_cpu(total))(x)
    products = [eqn for eqn in all_equations(program) if eqn.primitive is lax.dot_general_p]
    assert len(products) == (version and (shape, axis) in SUMS)
    whole = jax.make_jaxpr(kernels.for_cpu(total))(np.int32(x))
    assert not any(eqn.primitive is lax.dot_general_p for eqn in all_equations(whole))


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
    after = list(all_equations(jax.make_jaxpr(kernels.for_cpu(program))(x, k)))
    kind = lax.conv_general_dilated_p
    convolved = [eqn.params["dimension_numbers"] for eqn in after if eqn.primitive is kind]
    assert len(convolved) == sum(eqn.primitive is kind for eqn in before) > 4
    assert len({eqn.params["dimension_numbers"] for eqn in before if eqn.primitive is kind}) > 1
    assert set(convolved) == {lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))}
    count = [sum(eqn.primitive.name == "dot_general" for eqn in some) for some in (before, after)]
    assert count[0] == count[1]


def test_keys_and_structures_pass():
    def fn(state, batch):
        key, draw = jax.random.split(state["key"])
        return {"key": key}, (batch, jax.random.normal(draw))

    state = {"key": jax.random.key(1)}
    expected, found = fn(state, None), jax.jit(kernels.for_cpu(fn))(state, None)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert found[1][1] == expected[1][1]
    assert jnp.all(jax.random.key_data(found[0]["key"]) == jax.random.key_data(expected[0]["key"]))


def asides(program):
    """Shapes of what is computed in branches, and in kernels of its own."""
    equations = list(all_equations(program))
    branches = [eqn for eqn in equations if eqn.primitive is lax.cond_p]
    calls = [eqn for eqn in equations if (eqn.ctx.xla_metadata or {}).get("xla_cpu_small_call")]
    calls = [eqn for eqn in calls if "jaxpr" in eqn.params]
    return [[v.aval.shape for eqn in some for v in eqn.outvars] for some in (branches, calls)]


@pytest.mark.parametrize("is_in_loop", [False, True])
@pytest.mark.parametrize("make", [optimizers.adam, optax.adam, optax.rmsprop, optax.sgd])
def test_divisions_by_a_root_are_computed_aside(make, is_in_loop, monkeypatch):
    """With the same numbers, where there are many."""
    monkeypatch.setattr(kernels, "_IS_OLD", True)
    optimizer = make(1e-2)
    params = {"large": jnp.ones((64, 64)), "small": jnp.ones(64)}
    gradients = jax.tree.map(lambda x: jnp.arange(x.size, dtype=x.dtype).reshape(x.shape), params)

    def once(params, state):
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    def fn(params, state):
        if not is_in_loop:
            return once(params, state)
        return lax.fori_loop(0, 3, lambda _, carry: once(*carry), (params, state))

    state = optimizer.init(params)
    program = jax.make_jaxpr(kernels.for_cpu(fn, is_alone=False))(params, state)
    count = make in {optimizers.adam, optax.adam}
    assert asides(program) == [[(64, 64)] * count, []]
    branches, calls = asides(jax.make_jaxpr(kernels.for_cpu(fn))(params, state))
    assert (64, 64) not in branches
    assert calls.count((64, 64)) == count
    found, expected = jax.jit(kernels.for_cpu(fn))(params, state), jax.jit(fn)(params, state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


CURVES = [jnp.tanh, jax.nn.elu, jax.nn.softplus, jax.nn.silu, jax.nn.gelu]


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve.__name__)
def test_curves_of_activations_are_computed_aside(curve, monkeypatch):
    """With the same numbers and gradients, where there are many; not where all is constant."""
    monkeypatch.setattr(kernels, "_IS_OLD", True)
    weights = jnp.linspace(-0.1, 0.1, 64 * 64).reshape(64, 64)

    def layers(x, size):
        return curve(curve(x @ weights[:, :size]) @ weights[:size])

    def fn(x):
        few, many = (jax.grad(lambda x, n=n: jnp.sum(layers(x, n)))(x) for n in (8, 64))
        return few, many, curve(jnp.full((64, 64), 0.5))

    branches, calls = asides(jax.make_jaxpr(kernels.for_cpu(fn, is_alone=False))(weights))
    assert (set(branches), calls) == ({(64, 64)}, [])
    branches, calls = asides(jax.make_jaxpr(kernels.for_cpu(fn))(weights))
    assert (64, 64) not in branches
    assert (64, 64) in calls
    found, expected = jax.jit(kernels.for_cpu(fn))(weights), jax.jit(fn)(weights)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected
    )


def test_normal_draws_are_computed_aside(monkeypatch):
    """The same ones, where they are many: else what reads them computes them anew."""
    monkeypatch.setattr(kernels, "_IS_OLD", True)

    def fn(key):
        few, many = (jax.random.normal(key, (n, 64)) for n in (4, 8))
        return few, many, many * many + 1

    key = jax.random.key(5)
    branches, calls = asides(jax.make_jaxpr(kernels.for_cpu(fn))(key))
    assert (branches, calls) == ([(8, 64)], [])
    found, expected = jax.jit(kernels.for_cpu(fn))(key), jax.jit(fn)(key)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), found, expected
    )
