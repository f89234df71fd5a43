"""Functions with rules of the user's own: kernels that jax does not see into are split."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from troupe import partitioning as pt

MESH = pt.Mesh({"data": 4, "model": 2})
BATCH, LENGTH, HEADS, WIDTH, BLOCK = 4, 32, 2, 8, 16


def _block(q_ref, k_ref, v_ref, out_ref):
    """Softmax over blocks of keys, one after another, for a block of queries of one head."""
    q = q_ref[0, :, 0, :] * WIDTH**-0.5

    def turn(i, carry):
        most, total, acc = carry
        keys, values = (
            jax.lax.dynamic_slice_in_dim(ref[0, :, 0, :], i * BLOCK, BLOCK)
            for ref in (k_ref, v_ref)
        )
        scores = q @ keys.T
        now = jnp.maximum(most, scores.max(-1))
        weights = jnp.exp(scores - now[:, None])
        shrunk = jnp.exp(most - now)
        acc = acc * shrunk[:, None] + weights @ values
        return now, total * shrunk + weights.sum(-1), acc

    start = jnp.full(BLOCK, -jnp.inf), jnp.zeros(BLOCK), jnp.zeros((BLOCK, WIDTH))
    _, total, acc = jax.lax.fori_loop(0, k_ref.shape[1] // BLOCK, turn, start)
    out_ref[0, :, 0, :] = acc / total[:, None]


def kernel(q, k, v):
    batch, length, heads, width = q.shape
    queries = pl.BlockSpec((1, BLOCK, 1, width), lambda b, h, i: (b, i, h, 0))
    whole = pl.BlockSpec((1, k.shape[1], 1, width), lambda b, h, i: (b, 0, h, 0))
    return pl.pallas_call(
        _block,
        grid=(batch, heads, length // BLOCK),
        in_specs=[queries, whole, whole],
        out_specs=queries,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        interpret=True,
    )(q, k, v)


def plain(q, k, v):
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * WIDTH**-0.5
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, -1), v)


RULE = "b . h ., b . h ., b . h . -> b . h ."
ruled = pt.register_rule(RULE)(kernel)
_backward = pt.register_rule("b . h ., b . h ., b . h ., b . h . -> b . h ., b . h ., b . h .")(
    lambda q, k, v, g: jax.vjp(plain, q, k, v)[1](g)
)


@jax.custom_vjp
def flash(q, k, v):
    return ruled(q, k, v)


flash.defvjp(
    lambda q, k, v: (ruled(q, k, v), (q, k, v)), lambda kept, g: tuple(_backward(*kept, g))
)


def arrays():
    random = np.random.default_rng(0)
    shape = BATCH, LENGTH, HEADS, WIDTH
    return [random.normal(size=shape).astype(np.float32) for _ in range(3)]


def test_a_flash_attention_kernel_is_split_by_rows_and_heads():
    q, k, v = arrays()
    tactics = [pt.Manual("rows", {"q": 0}, "data"), pt.Manual("heads", {"q": 2}, "model")]
    step = pt.partition(lambda q, k, v: ruled(q, k, v), MESH, tactics)
    plan = step.plan(q, k, v)
    assert not any(plan.collectives.values())
    layouts = jax.tree.leaves(plan.input_shardings)
    assert layouts == [jax.sharding.PartitionSpec("data", None, "model")] * 3
    (op,) = [op for op in plan.program.walk() if op.name == "operation"]
    assert op.outputs[0].shape == (BATCH // 4, LENGTH, HEADS // 2, WIDTH)
    np.testing.assert_allclose(step(q, k, v), plain(q, k, v), rtol=2e-5, atol=1e-6)


def test_without_a_rule_it_is_gathered_and_said():
    q, k, v = arrays()
    step = pt.partition(kernel, MESH, [pt.Manual("rows", {"q": 0}, "data")])
    assert "pallas_call" in str(step.plan(q, k, v))
    assert step.plan(q, k, v).collectives["all_gather"]


def test_its_gradient_is_split_where_it_has_rules_of_its_own():
    state = dict(zip("qkv", arrays(), strict=True))

    def loss(attention, params):
        return jnp.mean(attention(params["q"], params["k"], params["v"]) ** 2)

    def update(attention, params):
        grads = jax.grad(functools.partial(loss, attention))(params)
        return jax.tree.map(lambda p, g: p - g, params, grads)

    step = pt.partition(
        functools.partial(update, flash), MESH, [pt.Manual("rows", {"params": 0}, "data")]
    )
    assert not any(step.plan(state).collectives.values())
    wanted = update(plain, state)
    for name, found in step(state).items():
        np.testing.assert_allclose(found, wanted[name], rtol=2e-4, atol=1e-6)


@pt.register_rule("b ., . k, k -> b k, b")
def product(x, w, bias):
    found = x @ w + bias
    return found, found[:, 0] * 0 + x.sum(1)


def test_it_is_the_function_itself_to_jax():
    random = np.random.default_rng(1)
    x, w, bias = (random.normal(size=s).astype(np.float32) for s in ((8, 3), (3, 4), (4,)))
    for fn in (product, jax.jit(product)):
        found, sums = fn(x, w, bias)
        np.testing.assert_allclose(found, x @ w + bias, rtol=1e-5)
        np.testing.assert_allclose(sums, x.sum(1), rtol=1e-5, atol=1e-6)
    grads = jax.grad(lambda w: product(x, w, bias)[0].sum())(w)
    np.testing.assert_allclose(grads, np.repeat(x.sum(0)[:, None], 4, 1), rtol=1e-5)
    many = np.stack([x, 2 * x])
    found, _ = jax.vmap(product, in_axes=(0, None, None))(many, w, bias)
    np.testing.assert_allclose(found, many @ w + bias, rtol=1e-5)
    nested, _ = jax.vmap(jax.vmap(product, in_axes=(0, None, None)), in_axes=(None, 0, None))(
        many, np.stack([w, -w]), bias
    )
    np.testing.assert_allclose(nested[1], many @ -w + bias, rtol=1e-5)


def test_what_vmap_adds_is_split_and_what_operands_alone_have_is_summed():
    total = pt.register_rule("b k, k -> b")(lambda x, w: x @ w)
    random = np.random.default_rng(2)
    x, w = (random.normal(size=s).astype(np.float32) for s in ((4, 8, 6), (6,)))

    def fn(x, w):
        return jax.vmap(total, in_axes=(0, None))(x, w)

    step = pt.partition(
        fn, MESH, [pt.Manual("seeds", {"x": 0}, "data"), pt.Manual("terms", {"x": 2}, "model")]
    )
    plan = step.plan(x, w)
    assert plan.collectives == {
        "all_reduce": 1, "all_gather": 0, "reduce_scatter": 0, "all_to_all": 0
    }  # fmt: skip
    np.testing.assert_allclose(step(x, w), x @ w, rtol=1e-5, atol=1e-6)
    again = pt.partition(fn, MESH, step.schedule, decisions=plan.decisions)
    assert again.plan(x, w).summary() == plan.summary()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("b k", "is no OPERANDS -> RESULTS"),
        ("b k -> b q", "no operand has the dimension 'q'"),
        ("b b -> b", "'b' stands twice"),
        ("b 2 -> b", "'2' is no name"),
        ("b k, k -> b", "has 2 operands; there are 1"),
        ("b -> b", "has 1 dimensions of operand 0, whose shape is (8, 3)"),
        ("b b2 -> b2", "has 'b2' of 3 and, in result 0, of 8"),
    ],
)
def test_a_rule_that_is_wrong_is_refused(rule, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        pt.register_rule(rule)(lambda x: x.sum(1))(np.ones((8, 3), np.float32))
