"""Sparse products, graphs, spectra, integers, derivatives of one's own, generators."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.experimental import sparse

from .program import Program, Tree, apply, integers, normal, perceptron, trained, weights

BATCH, WIDTH = 16, 8


def sparse_product() -> Program:
    """A product with a BCOO matrix of coordinates, forward and backward."""
    cells = np.stack([integers(0, BATCH, 24), integers(1, WIDTH, 24)], 1)

    def loss(params: Tree, batch: Tree, state: Tree) -> Any:
        matrix = sparse.BCOO((params["data"], state["cells"]), shape=(BATCH, WIDTH))
        return jnp.square((matrix @ params["w"]) * batch["x"]).mean(), {}

    params = {"data": normal(2, 24), "w": weights(3, WIDTH, WIDTH)}
    return trained(loss, params, {"x": normal(4, BATCH, WIDTH)}, cells=cells)


def graph_network() -> Program:
    """Messages along edges, summed by segments, and weighed by a softmax over neighbours."""
    edges = 48

    def loss(params: Tree, batch: Tree) -> jax.Array:
        x, count = batch["node"], batch["node"].shape[0]
        for _ in range(2):
            pair = jnp.concatenate([x[batch["sender"]], x[batch["receiver"]]], -1)
            score = jnp.tanh(pair) @ params["score"]
            top = jax.ops.segment_max(score, batch["receiver"], count)
            score = jnp.exp(score - top[batch["receiver"]])
            total = jax.ops.segment_sum(score, batch["receiver"], count)
            weight = score / jnp.maximum(total, 1e-6)[batch["receiver"]]
            message = apply(params["message"], pair) * weight[:, None]
            x = jnp.tanh(x + jax.ops.segment_sum(message, batch["receiver"], count))
        return jnp.square(x.mean(0)).sum()

    params = {"score": normal(0, 2 * WIDTH), "message": perceptron(1, 2 * WIDTH, WIDTH)}
    batch = {
        "node": normal(2, BATCH, WIDTH), "sender": integers(3, BATCH, edges),
        "receiver": integers(4, BATCH, edges),
    }  # fmt: skip
    # Adam would scale up gradients that are zero but for rounding: softmax takes no common part.
    return trained(loss, params, batch, optax.sgd(0.1))


def counters() -> Program:
    """Integers of many widths that wrap around, bits, and masks; no float among them."""

    def step(state: Tree, batch: Tree) -> Any:
        x = batch["x"]
        small = (x * 37).astype(jnp.int8)
        mixed = (x.astype(jnp.uint32) * jnp.uint32(2654435761)) ^ (x.astype(jnp.uint32) >> 3)
        mask = (mixed & 1).astype(bool)
        quotients = x // 3 - x % -5 + (x >> 1)
        seen = state["seen"].at[x[:, 0] % 8].add(1, mode="drop")
        found = {
            "bytes": small.sum(0, dtype=jnp.int8), "parity": jnp.bitwise_xor.reduce(mixed, 0),
            "any": mask.any(0), "all": mask.all(1), "largest": quotients.max(0),
            "ranks": jnp.argsort(quotients[:, 0], stable=True), "ones": lax.population_count(mixed),
            "product": jnp.prod(small, 0, dtype=jnp.uint8), "counts": mask.sum(),
            "nearest": jnp.abs(x[:, None] - x[None]).sum(-1).argmin(1), "mean": x.mean(0),
        }  # fmt: skip
        return {"seen": seen, "turn": state["turn"] + 1}, found

    state = {"seen": np.zeros(8, np.int32), "turn": 0}  # A Python integer, and so weakly typed.
    return Program(step, state, {"x": integers(0, 1000, BATCH, WIDTH) - 500})


def derivatives() -> Program:
    """Derivatives of one's own, forward and backward, and derivatives of derivatives."""

    @jax.custom_jvp
    def safe_log(x: jax.Array) -> jax.Array:
        return jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1)), -jnp.inf)

    safe_log.defjvps(lambda t, _, x: jnp.where(x > 0, t / jnp.where(x > 0, x, 1), 0))

    @jax.custom_vjp
    def reversed_gradient(x: jax.Array, scale: jax.Array) -> jax.Array:
        return x

    reversed_gradient.defvjp(lambda x, s: (x, s), lambda s, g: (-s * g, jnp.zeros_like(s)))

    def energy(params: Tree, x: jax.Array) -> jax.Array:
        return apply(params, x)[0]

    def loss(params: Tree, batch: Tree) -> jax.Array:
        force = jax.vmap(jax.grad(energy, 1), (None, 0))(params, batch["x"])
        curvature = jax.vmap(lambda x: jnp.trace(jax.hessian(energy, 1)(params, x)))(batch["x"])
        turned = reversed_gradient(force, jnp.asarray(0.5, force.dtype))
        return jnp.exp(safe_log(jnp.square(turned).sum(-1))).mean() + jnp.square(curvature).mean()

    return trained(loss, perceptron(0, WIDTH, 8, 1), {"x": normal(1, BATCH, WIDTH)})


def branches() -> Program:
    """A switch for every row, a branch for all, and a loop as long as each row asks for."""

    def step(state: Tree, batch: Tree) -> Any:
        def one(x: jax.Array, kind: jax.Array) -> Any:
            y = lax.switch(kind, [jnp.tanh, lambda x: x @ state["w"], jnp.zeros_like], x)
            y = lax.cond(y[0] > 0, lambda: y * 2, lambda: y - 1)
            turns, y = lax.while_loop(
                lambda c: (c[0] < 5) & (jnp.abs(c[1]).max() < 4),
                lambda c: (c[0] + 1, c[1] * 1.5), (jnp.int32(0), y),
            )  # fmt: skip
            return lax.fori_loop(0, kind, lambda i, y: y + i, y), turns

        y, turns = jax.vmap(one)(batch["x"], batch["kind"])
        shift = lax.cond(turns.sum() > 20, lambda w: w * 0.9, lambda w: w, state["w"])
        return {"w": shift}, {"y": y, "turns": turns}

    batch = {"x": normal(1, BATCH, WIDTH), "kind": integers(2, 3, BATCH)}
    return Program(step, {"w": weights(0, WIDTH, WIDTH)}, batch)


def spectral() -> Program:
    """A layer that multiplies spectra, over the batch's rows and over their columns."""
    params = {"real": normal(0, WIDTH // 2 + 1), "imaginary": normal(1, WIDTH // 2 + 1)}

    def loss(params: Tree, batch: Tree) -> jax.Array:
        kernel = lax.complex(params["real"], params["imaginary"])
        y = jnp.fft.irfft(jnp.fft.rfft(batch["x"], axis=1) * kernel, n=WIDTH, axis=1)
        across = jnp.fft.fft(y, axis=0)
        return jnp.square(y - batch["x"]).mean() + jnp.abs(across).max() / BATCH

    return trained(loss, params, {"x": normal(2, BATCH, WIDTH)})


def generators() -> Program:
    """Draws of several distributions, from keys of several implementations."""

    def step(state: Tree, batch: Tree) -> Any:
        found = {}
        for name, key in state.items():
            now = key if name != "raw" else jax.random.wrap_key_data(key)
            keys = jax.random.split(jax.random.fold_in(now, 7), BATCH)
            found[name] = {
                "noise": batch["x"] + jax.random.normal(now, (BATCH, WIDTH), jnp.float32),
                "each": jax.vmap(lambda k: jax.random.randint(k, (2,), 0, 9, jnp.int32))(keys),
                "order": jax.random.permutation(now, BATCH),
                "kept": jax.random.bernoulli(now, 0.3, (BATCH,)),
                "gumbel": jax.random.categorical(now, batch["x"]),
                "key": jax.random.split(now)[0],
            }
        return {n: k if n == "raw" else found[n]["key"] for n, k in state.items()}, found

    state = {n: jax.random.key(1, impl=n) for n in ("threefry2x32", "rbg", "unsafe_rbg")}
    return Program(step, {**state, "raw": jax.random.PRNGKey(2)}, {"x": normal(0, BATCH, WIDTH)})


def gaussian_processes() -> Program:
    """The likelihood of many small Gaussian processes, by Cholesky's factors."""

    def loss(params: Tree, batch: Tree) -> jax.Array:
        def one(x: jax.Array, y: jax.Array) -> jax.Array:
            h = jnp.tanh(x @ params["w"])
            distance = jnp.square(h[:, None] - h[None]).sum(-1)
            noise = jax.nn.softplus(params["noise"]) + 0.1
            factor = jnp.linalg.cholesky(jnp.exp(-distance) + noise * jnp.eye(6, dtype=h.dtype))
            white = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
            return 0.5 * white @ white + jnp.log(jnp.diagonal(factor)).sum()

        return jax.vmap(one)(batch["x"], batch["y"]).mean()

    params = {"w": weights(0, WIDTH, 4), "noise": np.float32(0)}
    return trained(loss, params, {"x": normal(1, BATCH, 6, WIDTH), "y": normal(2, BATCH, 6)})


PROGRAMS = {
    f.__name__: f
    for f in (
        sparse_product, graph_network, counters, derivatives, branches, spectral, generators,
        gaussian_processes,
    )
}  # fmt: skip
