"""Optimizers of matrices, loss scaling, and updates that a NaN must not pass."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from .program import Program, Tree, apply, normal, perceptron, trained, weights

BATCH, WIDTH = 16, 8


def _error(params: Tree, batch: Tree) -> jax.Array:
    return jnp.square(apply(params, batch["x"]) - batch["y"]).mean()


def _batch() -> Tree:
    return {"x": normal(1, BATCH, WIDTH), "y": normal(2, BATCH, 4)}


def orthogonalized() -> Program:
    """Muon: momentum made orthogonal by Newton and Schulz's iteration."""

    def init(params: Tree) -> Tree:
        return jax.tree.map(jnp.zeros_like, params)

    def update(grads: Tree, moments: Tree, params: Tree) -> Any:
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)

        def orthogonal(m: jax.Array) -> jax.Array:
            if m.ndim < 2:
                return m
            tall = m.shape[0] > m.shape[1]
            x = m.T if tall else m
            x /= jnp.linalg.norm(x) + 1e-7

            def turn(_: Any, x: jax.Array) -> jax.Array:
                gram = x @ x.T
                return 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x

            x = lax.fori_loop(0, 3, turn, x)
            return x.T if tall else x

        return jax.tree.map(lambda m: -0.05 * orthogonal(m), moments), moments

    optimizer = optax.GradientTransformation(init, update)  # type: ignore[arg-type]
    return trained(_error, perceptron(0, WIDTH, 16, 4), _batch(), optimizer)


def preconditioned() -> Program:
    """Shampoo: inverse fourth roots of the sums of both products, by eigenvectors."""

    def init(params: Tree) -> Tree:
        return jax.tree.map(lambda p: tuple(jnp.eye(n, dtype=p.dtype) for n in p.shape), params)

    def update(grads: Tree, sums: Tree, params: Tree) -> Any:
        def root(m: jax.Array) -> jax.Array:
            values, vectors = jnp.linalg.eigh(m)
            return (vectors * jnp.maximum(values, 1e-6) ** -0.25) @ vectors.T

        flat, tree = jax.tree.flatten(grads)
        sums = tree.flatten_up_to(sums)
        sums = [(a + g @ g.T, b + g.T @ g) for g, (a, b) in zip(flat, sums, strict=True)]
        updates = [-0.1 * root(a) @ g @ root(b) for g, (a, b) in zip(flat, sums, strict=True)]
        return tree.unflatten(updates), tree.unflatten(sums)

    def loss(params: Tree, batch: Tree) -> jax.Array:
        return jnp.square(jnp.tanh(batch["x"] @ params["in"]) @ params["out"] - batch["y"]).mean()

    params = {"in": weights(3, WIDTH, 6), "out": weights(4, 6, 4)}
    optimizer = optax.GradientTransformation(init, update)  # type: ignore[arg-type]
    return trained(loss, params, _batch(), optimizer)


def chained() -> Program:
    """A chain of optax: clipping, AdamW on some leaves, a schedule, and an average of it all."""
    optimizer = optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.scale_by_adam(),
        optax.add_decayed_weights(1e-3, mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p)),
        optax.scale_by_schedule(optax.warmup_cosine_decay_schedule(0.0, -0.1, 2, 10)),
        optax.ema(0.9),
    )
    return trained(_error, perceptron(0, WIDTH, 16, 4), _batch(), optimizer)


def loss_scaling() -> Program:
    """Half precision: the scale falls where a gradient overflows, and the update is left out."""

    def step(state: Tree, batch: Tree) -> Any:
        def loss(params: Tree) -> jax.Array:
            half = jax.tree.map(lambda x: x.astype(jnp.float16), params)
            out = apply(half, batch["x"].astype(jnp.float16)).astype(jnp.float32)
            return jnp.square(out - batch["y"]).mean() * state["scale"]

        value, grads = jax.value_and_grad(loss)(state["params"])
        grads = jax.tree.map(lambda g: g / state["scale"], grads)
        finite = jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
        params = jax.tree.map(
            lambda p, g: jnp.where(finite, p - 0.1 * g, p), state["params"], grads
        )
        scale = jnp.where(finite, state["scale"], jnp.maximum(state["scale"] / 2, 1))
        good = jnp.where(finite, state["good"] + 1, 0)
        return {"params": params, "scale": scale, "good": good}, {"loss": value, "finite": finite}

    state = {
        "params": perceptron(0, WIDTH, 16, 4), "scale": np.float32(2.0**20), "good": np.int32(0),
    }  # fmt: skip
    return Program(step, state, _batch())


def guarded() -> Program:
    """A batch with a NaN and an infinity: updates are skipped, and metrics tell."""

    def step(state: Tree, batch: Tree) -> Any:
        value, grads = jax.value_and_grad(_error)(state["params"], batch)
        norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(grads)))
        largest = jax.tree.map(lambda g: jnp.abs(g).max(), grads)
        bad = ~jnp.isfinite(norm)
        params = lax.cond(
            bad,
            lambda: state["params"],
            lambda: jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads),
        )
        metrics = {
            "loss": value, "norm": norm, "largest": largest, "mean": jnp.nanmean(batch["x"]),
            "worst row": jnp.argmax(batch["x"].max(1)), "rows": jnp.isnan(batch["x"]).any(1).sum(),
            "kept": jnp.nan_to_num(batch["x"], posinf=3.0).sum(0), "least": batch["y"].min(0),
        }  # fmt: skip
        return {"params": params, "skipped": state["skipped"] + bad}, metrics

    batch = _batch()
    batch["x"][3, 1], batch["x"][7, 2], batch["y"][2, 0] = np.nan, np.inf, -np.inf
    return Program(step, {"params": perceptron(0, WIDTH, 16, 4), "skipped": np.int32(0)}, batch)


def brain_floats() -> Program:
    """Parameters in bfloat16, with a copy in single precision and rounding at random."""

    def step(state: Tree, batch: Tree) -> Any:
        half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), state["params"])
        inputs = jax.tree.map(lambda x: x.astype(jnp.bfloat16), batch)
        value, grads = jax.value_and_grad(_error)(half, inputs)
        params = jax.tree.map(lambda p, g: p - 0.1 * g.astype(p.dtype), state["params"], grads)
        key, drawn = jax.random.split(state["key"])

        def rounded(p: jax.Array) -> jax.Array:
            noise = jax.random.bits(drawn, p.shape, jnp.uint32) & jnp.uint32(0xFFFF)
            bits = lax.bitcast_convert_type(jnp.ones_like(p), jnp.uint32) + noise
            cut = bits & jnp.uint32(0xFFFF0000)
            return lax.bitcast_convert_type(cut, jnp.float32).astype(jnp.bfloat16)

        return {"params": params, "key": key}, {"loss": value, "ones": rounded(params[0]["w"])}

    return Program(
        step, {"params": perceptron(0, WIDTH, 16, 4), "key": jax.random.key(0)}, _batch()
    )


PROGRAMS = {
    f.__name__: f
    for f in (orthogonalized, preconditioned, chained, loss_scaling, guarded, brain_floats)
}
