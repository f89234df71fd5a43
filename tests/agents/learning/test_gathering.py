"""Operations on few numbers gathered: the same numbers, and no kernel of what it must not have."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from troupe.agents.learning import gathering, kernels, optimizers


@pytest.fixture(autouse=True)
def old(monkeypatch):
    """What is done with jax 0.6 means the same with any."""
    monkeypatch.setattr(kernels, "_IS_OLD", True)


def gathered(fn, *args, is_alone=True):
    """The equations of every group: (those in kernels, those in branches)."""
    in_kernels, in_branches = [], []

    def walk(program):
        for equation in program.eqns:
            inner = gathering.programs_in(equation)
            if equation.primitive is lax.cond_p:
                in_branches.append(inner[0].eqns)
            elif (equation.ctx.xla_metadata or {}).get("xla_cpu_small_call"):
                in_kernels.extend(program.eqns for program in inner)
            else:
                list(map(walk, inner))

    walk(jax.make_jaxpr(kernels.for_cpu(fn, is_alone=is_alone))(*args).jaxpr)
    return in_kernels, in_branches


def shared_out(fn, *args):
    """(how many operations XLA shares out among threads, how many of them in calls as a kernel)."""
    text = jax.jit(fn).lower(*args).compile().as_text()
    bodies = {}
    for part in text.split("\n\n"):
        name = re.match(r"(?:ENTRY )?%([\w.\-]+)", part)
        if name:
            bodies[name[1]] = part
    seen = set()

    def reach(name):
        if name not in seen and name in bodies:
            seen.add(name)
            list(map(reach, re.findall(r"(?:to_apply|calls|body)=%([\w.\-]+)", bodies[name])))

    for line in text.splitlines():
        if " call(" in line and "xla_cpu_small_call" in line:
            reach(re.search(r"to_apply=%([\w.\-]+)", line)[1])
    mark = "outer_dimension_partitions"
    return text.count(mark), sum(bodies[name].count(mark) for name in seen)


def make_update(batch=256, hidden=64, num_epochs=3):
    """Epochs on one batch of a network of two layers, with many operations on few numbers."""
    rng = np.random.default_rng(0)
    sizes = [(4, hidden), (hidden,), (hidden, hidden), (hidden,), (hidden, 2), (2,)]
    params = [jnp.asarray(rng.normal(size=size) / 8, jnp.float32) for size in sizes]
    x = jnp.asarray(rng.normal(size=(batch, 4)), jnp.float32)
    weight = jnp.asarray(rng.uniform(size=batch), jnp.float32)
    optimizer = optimizers.adam(1e-2)

    def loss(params, x, weight):
        w0, b0, w1, b1, w2, b2 = params
        logits = jnp.tanh(jnp.tanh(x @ w0 + b0) @ w1 + b1) @ w2 + b2
        log_probs = jax.nn.log_softmax(logits)
        ratio = jnp.exp(log_probs[:, 0] - jnp.log(weight))
        clipped = jnp.minimum(ratio * weight, jnp.clip(ratio, 0.8, 1.2) * weight)
        entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, -1)
        return -jnp.mean(clipped), {"entropy": jnp.mean(entropy), "ratio": jnp.max(ratio)}

    def epoch(carry, _):
        params, state, x, weight = carry
        (value, aux), gradients = jax.value_and_grad(loss, has_aux=True)(params, x, weight)
        norm = optax.tree.norm(gradients)
        gradients = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.5 / norm), gradients)
        updates, state = optimizer.update(gradients, state)
        return (optax.apply_updates(params, updates), state, x, weight), (value, norm, aux)

    def update(params, state, x, weight):
        return lax.scan(epoch, (params, state, x, weight), length=num_epochs)

    return update, (params, optimizer.init(params), x, weight)


def test_an_update_of_few_numbers_stays():
    update, args = make_update()
    found, expected = jax.jit(kernels.for_cpu(update))(*args), jax.jit(update)(*args)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), found, expected
    )
    in_kernels, in_branches = gathered(update, *args)
    found = {equation.primitive for group in in_kernels for equation in group}
    assert {lax.log_p, lax.sqrt_p, lax.reduce_sum_p, lax.min_p, lax.select_n_p} <= found
    assert sum(map(len, in_kernels)) > 60
    assert in_branches == []


@pytest.mark.parametrize("hidden", [64, 100, 128])
@pytest.mark.parametrize("batch", [64, 256, 500, 2_000])
def test_nothing_in_a_kernel_is_shared_out(batch, hidden):
    """Else XLA would end the process. Besides, here it is run."""
    update, args = make_update(batch, hidden)
    fast = kernels.for_cpu(update)
    assert "xla_cpu_small_call" in jax.jit(fast).lower(*args).as_text()
    assert shared_out(fast, *args)[1] == 0
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.jit(fast)(*args)))


def chain(steps):
    """So many steps for each number of an array."""

    def compute(first):
        x = first
        for i in range(steps):
            x = x * first if i % 2 else x + 0.5
        return x

    return compute


def test_levels_keep_the_order_of_what_needs_what():
    """Few numbers, many, few, many and few again, side by side with a way that has fewer stations;
    with constants, what is not used and what is given besides."""
    w = jnp.asarray(np.random.default_rng(1).normal(size=(64, 64)) / 8, jnp.float32)

    def fn(x, y):
        a = x * 2 + 1 - y
        unused = a * 3
        b = jnp.exp(w * 0.1) @ (a * a - x)
        c = (b + 1) * a - jnp.float32(2)
        d = w @ (c - 3 * x)
        e = d * y + a + b - c
        return e, {"c": c, "late": (y * y - 1) / 2}, unused.astype(jnp.int32) > 0

    x, y = jnp.linspace(-1, 1, 64), jnp.linspace(0, 2, 64)
    found, expected = jax.jit(kernels.for_cpu(fn))(x, y), fn(x, y)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), found, expected)
    assert list(map(len, gathered(fn, x, y))) == [3, 0]


def test_what_is_left_as_it_is():
    """Loops that XLA makes kernels of, programs of many numbers, those on several devices, steps
    that have effects, other kinds of numbers, what is known before, and what is too little."""
    x, w = jnp.linspace(0, 1, 64), jnp.ones((64, 64))
    few = chain(6)

    def loop(x):
        return lax.fori_loop(0, 3, lambda _, x: few(x), x)

    def effect(x):
        jax.debug.callback(lambda: None)
        return w @ few(x)

    ((one,), _) = gathered(lambda x: w @ few(x), x)
    assert len(one) == 6
    alone = [
        (loop, x),
        (effect, x),
        (lambda x: jnp.ones((256, 256)) @ jnp.tile(few(x), 4), x),
        (lambda x: w @ chain(2)(x), x),
        (lambda x: w @ few(x).astype(jnp.float32), x.astype(jnp.bfloat16)),
        (lambda x: w @ (x + few(jnp.zeros(64))), x),
    ]
    for fn, given in alone:
        assert gathered(fn, given) == ([], [])
    assert gathered(lambda x: w @ few(x), x, is_alone=False) == ([], [])


def test_a_kernel_computes_few_numbers_in_all():
    w = jnp.ones((512, 32))
    in_kernels, _ = gathered(lambda x: chain(20)(x) @ w, jnp.linspace(0, 1, 512))
    assert list(map(len, in_kernels)) == [8, 8, 4]


def test_what_xla_might_do_without_is_no_operand_of_a_kernel():
    """It would end the process."""
    w = jnp.ones((64, 64))

    def fn(x, y):
        return w @ (lax.select(x > 0.5, y, y) * 2 + 1)

    x, y = jnp.linspace(-1, 1, 64), jnp.linspace(0, 2, 64)
    in_kernels, in_branches = gathered(fn, x, y)
    assert (len(in_kernels), len(in_branches)) == (0, 1)
    found, expected = jax.jit(kernels.for_cpu(fn))(x, y), fn(x, y)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_keys_pass():
    def fn(key, w):
        key, draw = jax.random.split(key)
        noise = jax.random.normal(draw, (64,)) * 2 + 1 - w[0]
        return key, w @ (noise * noise / 3)

    w = jnp.ones((64, 64))
    found, expected = jax.jit(kernels.for_cpu(fn))(jax.random.key(3), w), fn(jax.random.key(3), w)
    assert jax.random.key_data(found[0]).tolist() == jax.random.key_data(expected[0]).tolist()
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)
