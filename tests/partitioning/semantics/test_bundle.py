"""Sums that wait for a reader and travel together: the same numbers, fewer messages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe import partitioning as pt


def losses(params, batch):
    """A loss with several gradients, of two dtypes, after a norm that reads all of them."""
    hidden = jnp.tanh(batch @ params["first"] + params["bias"])
    half = params["half"].astype(jnp.float32)
    return jnp.mean((hidden @ params["second"]) ** 2) + jnp.mean(hidden * half)


def step(params, batch):
    loss, gradients = jax.value_and_grad(losses)(params, batch)
    norm = jnp.sqrt(sum(jnp.sum(g.astype(jnp.float32) ** 2) for g in jax.tree.leaves(gradients)))
    params = jax.tree.map(lambda p, g: (p - 0.1 * g / norm).astype(p.dtype), params, gradients)
    return params, {"loss": loss, "largest": jnp.max(batch), "total": jnp.sum(batch)}


def looped(params, batch):
    """The same within a loop."""
    params, outputs = jax.lax.scan(lambda p, _: step(p, batch), params, None, length=3)
    return params, outputs


def arguments():
    random = np.random.default_rng(0)
    shapes = {"first": (6, 5), "bias": (5,), "second": (5, 2)}
    params = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    params["half"] = np.ones((5,), np.float16)
    return params, random.normal(size=(16, 6)).astype(np.float32)


def collectives(partitioned, *args):
    text = partitioned.compile(*args).lower().as_text()
    return text.count('all_reduce"(')


@pytest.mark.parametrize("fn", [step, looped])
def test_bundled_sums_are_the_same_in_fewer_messages(fn):
    args = arguments()
    apart, together = (
        pt.partition(fn, pt.Mesh({"data": 4}), [pt.tactics.batch_parallel("data")], bundle=bundle)
        for bundle in (False, True)
    )
    expected, found, alone = apart(*args), together(*args), fn(*args)
    for ours, theirs, whole in zip(*map(jax.tree.leaves, (found, expected, alone)), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        np.testing.assert_allclose(ours, whole, rtol=1e-2 if ours.dtype == np.float16 else 1e-5)
    # One a dtype for what the norm reads, one for what nobody does, and the maximum.
    assert collectives(apart, *args) > collectives(together, *args)
    assert collectives(together, *args) <= 4


@pytest.mark.skipif(
    jax.__version_info__ < (0, 7), reason="the compiler drops barriers before it fuses"
)
def test_what_is_reduced_is_not_computed_for_each_element_of_a_bundle():
    """A fusion of small reductions with the concatenation took 20 times as long as the step."""
    args = arguments()
    together = pt.partition(
        step, pt.Mesh({"data": 4}), [pt.tactics.batch_parallel("data")], bundle=True
    )
    text = together.compile(*args).lower().compile().as_text()
    joined = [part for part in text.split("\n\n") if "concatenate(" in part]
    assert joined
    assert not [part for part in joined if " reduce(" in part and "fused_computation" in part]
