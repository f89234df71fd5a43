"""Networks as configs say: of every size, with any core, in half precision where asked."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dm_env import specs

from troupe.agents.configs import RecurrentConfig
from troupe.agents.networks import assembly, heads
from troupe.agents.networks.core import from_haiku
from troupe.agents.networks.torsos import make_torso

SPEC = specs.Array((4,), np.float32)
IMAGE = specs.Array((84, 84, 4), np.uint8)


def make(spec=SPEC, **config):
    config = RecurrentConfig(**config)
    return assembly.make_network(spec, config, lambda x: heads.action_values(x, 3))


@pytest.mark.parametrize(
    ("millions", "config"),
    [
        (1, {"core": "transformer", "core_size": 200}),
        (25, {"core": "lstm", "core_size": 2048, "torso": "residual", "torso_width": 2}),
        (255, {"core": "gru", "core_size": 4096, "core_layers": 3}),
        (1_000, {"core": "transformer", "core_size": 2048, "core_layers": 10, "core_heads": 16}),
    ],
)
def test_one_config_has_every_size(millions, config):
    network = make(IMAGE if "torso" in config else SPEC, hidden_sizes=(256,), **config)
    shapes = jax.eval_shape(network.init, jax.random.key(0))
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) / 1e6
    assert 0.9 * millions < count < 1.1 * millions


@pytest.mark.parametrize("core", ["lstm", "gru", "transformer"])
def test_half_precision_keeps_parameters_gradients_and_moments_whole(core):
    sizes = {"hidden_sizes": (8,), "core": core, "core_size": 8, "memory_length": 3}
    half, whole = (make(dtype=dtype, **sizes) for dtype in ("bfloat16", "float32"))
    params = jax.jit(half.init)(jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)
    start = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), half.initial_state)

    def loss(params, network=half):
        outputs, state = network.unroll(params, x, start, np.zeros((2, 5)))
        assert outputs.dtype == jnp.float32
        assert all(leaf.dtype in (jnp.float32, jnp.int32) for leaf in jax.tree.leaves(state))
        return jnp.sum(outputs**2)

    gradients = jax.jit(jax.grad(loss))(params)
    moments = optax.adam(1e-3).init(params)
    for leaf in jax.tree.leaves((params, gradients, moments)):
        assert leaf.dtype in (jnp.float32, jnp.int32)
    found, exact = (jax.jit(lambda params, n=n: loss(params, n))(params) for n in (half, whole))
    assert float(found) != float(exact)
    np.testing.assert_allclose(found, exact, rtol=0.1)
    assert "bf16" in str(jax.make_jaxpr(loss)(params))


@pytest.mark.distributed
def test_half_precision_is_that_of_jax_where_tensorflow_has_one_too():
    pytest.importorskip("tensorflow")
    network = make(dtype="bfloat16", hidden_sizes=(8,))
    params = jax.jit(network.init)(jax.random.key(0))
    x = np.zeros((2, 5, 4), np.float32)
    unroll = jax.make_jaxpr(lambda params: network.unroll(params, x, (), np.zeros((2, 5))))
    assert "bf16" in str(unroll(params))


def test_features_are_as_exact_as_asked():
    torso = make_torso(SPEC, (8,), dtype=jnp.bfloat16)
    network = from_haiku(torso, jnp.zeros((1, 4)))
    params = network.init(jax.random.key(0))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    assert network.apply(params, jnp.zeros((1, 4))).dtype == jnp.bfloat16


def test_without_a_core_rows_are_on_their_own():
    network = make(hidden_sizes=(8,))
    params = jax.jit(network.init)(jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)
    outputs, state = network.unroll(params, x, network.initial_state, np.zeros((2, 5)))
    one, _ = network.step(params, x[1, 3], ())
    assert jax.tree.leaves(state) == []
    np.testing.assert_allclose(one, outputs[1, 3], rtol=1e-5)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="core_heads is 3; core_heads must divide core_size"):
        RecurrentConfig(core="transformer", core_heads=3)
