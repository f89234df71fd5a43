"""A learner whose loss plans with a learnt model: Monte Carlo tree search within the step."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax
import pytest

from troupe import partitioning as pt

BATCH, FEATURES, WIDTH, ACTIONS, UNROLL = 16, 6, 8, 3, 1
OPTIMIZER = optax.adam(1e-2)


def _init(key: jax.Array) -> Any:
    shapes = {
        "represent": (FEATURES, WIDTH),
        "dynamics": (WIDTH + ACTIONS, WIDTH),
        "reward": (WIDTH + ACTIONS, 1),
        "policy": (WIDTH, ACTIONS),
        "value": (WIDTH, 1),
    }
    keys = jax.random.split(key, len(shapes))
    params = {n: jax.random.normal(k, s) for k, (n, s) in zip(keys, shapes.items(), strict=True)}
    return {"params": params, "optimizer": OPTIMIZER.init(params), "key": key}


def _batch(key: jax.Array) -> Any:
    keys = jax.random.split(key, 3)
    return {
        "observations": jax.random.normal(keys[0], (BATCH, FEATURES)),
        "actions": jax.random.randint(keys[1], (BATCH, UNROLL), 0, ACTIONS),
        "rewards": jax.random.normal(keys[2], (BATCH, UNROLL)),
    }


def _predict(params: Any, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
    return hidden @ params["policy"], (hidden @ params["value"])[:, 0]


def _imagine(params: Any, hidden: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
    joined = jnp.concatenate([hidden, jax.nn.one_hot(action, ACTIONS)], -1)
    return jnp.tanh(joined @ params["dynamics"]), (joined @ params["reward"])[:, 0]


def _recurrent(params: Any, key: jax.Array, action: jax.Array, hidden: jax.Array) -> Any:
    del key
    hidden, reward = _imagine(params, hidden, action)
    logits, value = _predict(params, hidden)
    return mctx.RecurrentFnOutput(
        reward=reward, discount=jnp.full_like(value, 0.9), prior_logits=logits, value=value
    ), hidden


def learner(search: Any) -> Any:
    """MuZero's update (Schrittwieser et al., 2020): the search of every state is its target."""

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        hidden = jnp.tanh(batch["observations"] @ params["represent"])
        total = jnp.float32(0)
        for turn in range(UNROLL):
            logits, value = _predict(params, hidden)
            root = jax.lax.stop_gradient(
                mctx.RootFnOutput(prior_logits=logits, value=value, embedding=hidden)
            )
            key, now = jax.random.split(key)
            found = search(jax.lax.stop_gradient(params), now, root, _recurrent)
            target = found.search_tree.summary()
            total += optax.softmax_cross_entropy(logits, found.action_weights).mean()
            total += ((value - target.value) ** 2).mean()
            hidden, reward = _imagine(params, hidden, batch["actions"][:, turn])
            total += ((reward - batch["rewards"][:, turn]) ** 2).mean()
        return total

    def update(state: Any, batch: Any) -> Any:
        key, now = jax.random.split(state["key"])
        value, grads = jax.value_and_grad(loss)(state["params"], batch, now)
        updates, optimizer = OPTIMIZER.update(grads, state["optimizer"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "optimizer": optimizer, "key": key}, value

    return update


GUMBEL = functools.partial(mctx.gumbel_muzero_policy, num_simulations=4)
MUZERO = functools.partial(mctx.muzero_policy, num_simulations=4)


@pytest.mark.parametrize(
    ("search", "schedule"),
    [
        (GUMBEL, "batch:data,zero3:data"),
        pytest.param(MUZERO, "batch:data", marks=pytest.mark.long),
    ],
)
def test_a_learner_that_searches_equals_the_unpartitioned_one(search: Any, schedule: str) -> None:
    update = learner(search)
    state, batch = _init(jax.random.PRNGKey(0)), _batch(jax.random.PRNGKey(1))
    step = pt.partition(update, pt.Mesh({"data": 8}), pt.parse_schedule(schedule))
    searches = [op for op in step.plan(state, batch).program.ops if op.regions]
    inside = {op.name for search in searches for op in search.regions[0].walk()}
    assert searches
    assert not inside & {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    one, many = jax.jit(update), step
    expected, found = one(state, batch), many(state, batch)
    expected, found = one(expected[0], batch), many(found[0], batch)
    for want, have in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=1e-5)
