"""A partitioned step is to its caller what `jax.jit` makes of it: values, NaN, settings, meshes."""

import contextlib
import pickle

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from troupe import partitioning as pt

doubles = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
MESH = pt.Mesh({"data": 4, "model": 2})
ROWS = [pt.Manual("rows", {"x": 0}, "data")]


def rows(dtype=np.float32):
    return np.random.default_rng(0).normal(size=(16, 4)).astype(dtype)


def extremes(x):
    largest = jnp.max(x, axis=0)
    return largest, jnp.min(x), jnp.isnan(largest), jax.ops.segment_max(x, jnp.arange(16) % 3, 3)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32])
@pytest.mark.parametrize(
    "awkward", [[], [np.nan], [-np.nan], [np.inf, -np.inf], [np.nan, np.inf], [-0.0, 0.0]]
)
def test_the_largest_of_split_rows_is_nan_where_one_is(dtype, awkward):
    x = 100 * rows()
    if dtype != jnp.int32:
        x[3 : 3 + len(awkward), 1] = awkward
        x[4:, 2] = -np.abs(x[4:, 2])  # A sign decides the order of their bits.
    x = jnp.asarray(x, dtype)
    step = pt.partition(extremes, MESH, ROWS)
    assert step.plan(x).collectives["all_reduce"] >= 2
    for found, wanted in zip(step(x), jax.jit(extremes)(x), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(
            np.asarray(found).astype(np.float64), np.asarray(wanted).astype(np.float64)
        )


def test_the_largest_of_doubles_is_nan_where_one_is():
    with doubles(True):
        x = rows(np.float64)
        x[5, 0] = np.nan
        found, wanted = pt.partition(extremes, MESH, ROWS)(x), jax.jit(extremes)(x)
        for one, other in zip(found, wanted, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


def scaled(x, w):
    return jax.nn.relu(x @ w) + jnp.arange(3.0), x.sum(0), x + 1


@contextlib.contextmanager
def settings(name):
    if name == "x64":
        with doubles(True):
            yield
    elif name == "precision":
        with jax.default_matmul_precision("float32"):
            yield
    elif name == "prng":
        with jax.threefry_partitionable(False):
            yield
    else:
        yield


def test_a_call_is_made_under_the_settings_of_its_caller():
    step = pt.partition(scaled, MESH, ROWS)
    for name in ("", "x64", "precision", "prng", "", "x64"):
        # New arrays each time: jax 0.12 knows by the array, not by the settings, what it has cast
        # one of NumPy's to, for as long as anything still holds the result.
        x, w = rows(np.float64), np.ones((4, 3))
        with settings(name):
            found, wanted = step(x, w), jax.jit(scaled)(x, w)
            text = step.lower(x, w).as_text()
        for one, other in zip(found, wanted, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_allclose(one, other, rtol=1e-12 if name == "x64" else 1e-5)
        assert ("HIGHEST" in text) == (name == "precision")


def other_mesh(axis, kind):
    types = getattr(jax.sharding.AxisType, kind)
    return jax.make_mesh((4,), (axis,), axis_types=(types,))


@pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="this jax sets no mesh")
@pytest.mark.parametrize("donate", [(), ("x",)])
@pytest.mark.parametrize("axis", ["other", "data"])
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_a_mesh_of_the_callers_does_not_matter(axis, kind, donate):
    other = other_mesh(axis, kind)
    x, w = rows(), np.ones((4, 3), np.float32)
    wanted = scaled(x, w)
    before = pt.partition(scaled, MESH, ROWS, donate=donate)
    before(x, w)

    def spread():
        return jax.device_put(x, NamedSharding(other, PartitionSpec(axis)))

    for step in (before, pt.partition(scaled, MESH, ROWS, donate=donate)):
        found = [step(spread(), w)]
        with jax.set_mesh(other):
            found += [step(x, w), step(spread(), w)]
        for one in found:
            for a, b in zip(one, wanted, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="this jax sets no mesh")
@pytest.mark.parametrize("schedule", ["", "hints:data"])
def test_hints_without_a_mesh_are_of_the_mesh_that_the_caller_sets(schedule):
    def fn(x, w):
        return jnp.tanh(jax.lax.with_sharding_constraint(x @ w, PartitionSpec("data"))).sum(0)

    x, w = rows(), np.ones((4, 3), np.float32)
    step = pt.partition(fn, MESH, pt.parse_schedule(schedule))
    with jax.set_mesh(MESH.jax_mesh()):
        found = step(x, w)
    np.testing.assert_allclose(found, jnp.tanh(x @ w).sum(0), rtol=1e-5)


def hinted(axis):
    mesh = MESH.jax_mesh() if axis in MESH.axes else other_mesh(axis, "Auto")
    dim = None if axis == "nothing" else axis

    def fn(x, w):
        h = jax.lax.with_sharding_constraint(x @ w, NamedSharding(mesh, PartitionSpec(dim, None)))
        return jnp.tanh(h).sum(0)

    return fn


@pytest.mark.parametrize("axis", ["data", "fsdp"])
def test_hints_of_the_step_decide_nothing_and_the_plan_says_so(axis):
    x, w = rows(), np.ones((4, 3), np.float32)
    fn = hinted(axis)
    for schedule in ([], [pt.Manual("rows", {"w": 0}, "model")]):
        step = pt.partition(fn, MESH, schedule)
        remarks = step.plan(x, w).steps[-1].remarks()
        (said,) = [line for line in remarks if "not followed" in line]
        assert ("hints:AXIS" in said) == (axis == "data")
        assert ("mesh data=4,model=2 has no axis 'fsdp'" in said) == (axis == "fsdp")
        assert f"with_sharding_constraint P('{axis}', None) at" in said
        assert "test_as_jit.py:" in said
        np.testing.assert_allclose(step(x, w), fn(x, w), rtol=1e-5)


def test_a_tactic_follows_the_hints_of_the_step():
    x, w = rows(), np.ones((4, 3), np.float32)
    fn = hinted("data")
    step = pt.partition(fn, MESH, pt.parse_schedule("hints:data"))
    plan = step.plan(x, w)
    assert plan.input_shardings == ((PartitionSpec("data"), PartitionSpec()))
    assert plan.collectives["all_reduce"] == 1
    assert not [line for line in plan.steps[-1].remarks() if "hints" in line]
    np.testing.assert_allclose(step(x, w), fn(x, w), rtol=1e-5)
    by_name = pt.partition(fn, MESH, [pt.Manual("hint", {"P('data', None)": 0}, "data")])
    assert by_name.plan(x, w).input_shardings == plan.input_shardings
    with pytest.raises(ValueError, match="names axis 'model'; they name data"):
        pt.partition(fn, MESH, pt.parse_schedule("hints:model")).plan(x, w)


def test_hints_yield_to_earlier_tactics():
    x, w = rows(), np.ones((4, 4), np.float32)
    columns = pt.Manual("columns", {"w": 1}, "data")
    step = pt.partition(hinted("data"), MESH, [columns, *pt.parse_schedule("hints:data")])
    plan = step.plan(x, w)
    assert plan.output_shardings == PartitionSpec("data")
    assert [line for line in plan.steps[-1].remarks() if "not followed" in line]


def test_a_part_that_is_partitioned_already_is_refused_where_it_stands():
    spec = PartitionSpec("data")
    inner = jax.shard_map(lambda x: 2 * x, mesh=MESH.jax_mesh(), in_specs=spec, out_specs=spec)
    step = pt.partition(lambda x: inner(x).sum(), MESH, [])
    with pytest.raises(ValueError, match=r"holds shard_map at .*test_as_jit.py:\d+, which is part"):
        step.plan(rows())


def test_a_step_is_lowered_and_its_shapes_are_told_as_of_a_jitted_one():
    x, w = jax.ShapeDtypeStruct((16, 4), np.float32), jax.ShapeDtypeStruct((4, 3), np.float32)
    step = pt.partition(scaled, MESH, ROWS)
    assert step.eval_shape(x, w=w) == jax.eval_shape(scaled, x, w)
    compiled = step.lower(x, w).compile()
    flat = compiled(
        *jax.device_put((rows(), np.ones((4, 3), np.float32)), compiled.input_shardings[0])
    )
    np.testing.assert_allclose(flat[1], rows().sum(0), rtol=1e-5)


def test_a_step_that_was_called_can_be_pickled():
    step = pt.partition(scaled, MESH, ROWS)
    x, w = rows(), np.ones((4, 3), np.float32)
    wanted = step(x, w)
    again = pickle.loads(pickle.dumps(step))
    for a, b in zip(again(x, w), wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    assert again.plan(x, w).to_json() == step.plan(x, w).to_json()
