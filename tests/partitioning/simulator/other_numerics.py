"""Steps of numerics, images and optimizers, as other people write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .other_sequences import Step, cross_entropy, f32, i32, trained

# -- optimizers -----------------------------------------------------------------------------------


def orthogonalised() -> Step:
    """Muon: momentum made orthogonal by Newton and Schulz's iteration."""

    def orthogonal(g: Any) -> Any:
        x = g / (jnp.linalg.norm(g) + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        return x

    def step(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            h = jnp.tanh(batch["x"] @ params["a"])
            return jnp.square(jnp.tanh(h @ params["b"]) - batch["y"]).mean()

        grads = jax.grad(loss)(state["params"])
        moments = jax.tree.map(lambda m, g: 0.95 * m + g, state["moments"], grads)
        params = jax.tree.map(lambda p, m: p - 0.02 * orthogonal(m), state["params"], moments)
        return {"params": params, "moments": moments}

    params = {"a": f32(256, 512), "b": f32(512, 512)}
    return step, ({"params": params, "moments": params}, {"x": f32(256, 256), "y": f32(256, 512)})


def rooted() -> Step:
    """Shampoo: inverse fourth roots of the gradients' second moments."""

    def root(matrix: Any) -> Any:
        values, vectors = jnp.linalg.eigh(matrix + 1e-4 * jnp.eye(matrix.shape[0]))
        return (vectors * jnp.maximum(values, 1e-6) ** -0.25) @ vectors.T

    def step(state: Any, batch: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.square(jnp.tanh(batch["x"] @ w) - batch["y"]).mean()

        grad = jax.grad(loss)(state["w"])
        left = state["left"] + grad @ grad.T
        right = state["right"] + grad.T @ grad
        return {"w": state["w"] - 0.1 * root(left) @ grad @ root(right), "left": left,
                "right": right}  # fmt: skip

    state = {"w": f32(256, 384), "left": f32(256, 256), "right": f32(384, 384)}
    return step, (state, {"x": f32(512, 256), "y": f32(512, 384)})


def whitened() -> Step:
    """Triangular factors of a Kronecker preconditioner, fitted to the gradient and noise."""

    def step(state: Any, batch: Any, key: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.square(jnp.tanh(batch["x"] @ w) - batch["y"]).mean()

        grad = jax.grad(loss)(state["w"])
        left, right = state["left"], state["right"]
        noise = jax.random.normal(key, grad.shape)
        a = left @ grad @ right.T
        solve = jax.scipy.linalg.solve_triangular
        b = solve(left, solve(right, noise.T, trans=1).T, trans=1)
        new = []
        for q, one, other in ((left, a @ a.T, b @ b.T), (right, a.T @ a, b.T @ b)):
            change = jnp.triu(one - other)
            new.append(q - 0.1 * change @ q / jnp.abs(one + other).max())
        update = left.T @ a @ right
        return {"w": state["w"] - 0.01 * update, "left": new[0], "right": new[1]}

    state = {"w": f32(256, 384), "left": f32(256, 256), "right": f32(384, 384)}
    key = jax.eval_shape(lambda: jax.random.key(0))
    return step, (state, {"x": f32(256, 256), "y": f32(256, 384)}, key)


def clipped_privately() -> Step:
    """A gradient for each example, clipped before they are summed."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        return jnp.square(jnp.tanh(x @ params["a"]) @ params["b"] - y).mean()

    def step(state: Any, batch: Any) -> Any:
        grads = jax.vmap(jax.grad(loss), (None, 0, 0))(state, batch["x"], batch["y"])
        squares = [jnp.square(g).sum(range(1, g.ndim)) for g in jax.tree.leaves(grads)]
        scale = jnp.minimum(1.0, lax.rsqrt(sum(squares) + 1e-6))
        return jax.tree.map(
            lambda p, g: p - 0.1 * (g * scale.reshape(-1, *[1] * p.ndim)).mean(0), state, grads
        )

    params = {"a": f32(64, 64), "b": f32(64, 16)}
    return step, (params, {"x": f32(256, 64), "y": f32(256, 16)})


# -- images ---------------------------------------------------------------------------------------


def _convolve(x: Any, w: Any, stride: int = 1) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=numbers)


def variational_autoencoder() -> Step:
    """Strided convolutions, a draw, transposed convolutions."""

    def loss(params: Any, batch: Any) -> Any:
        h = jax.nn.relu(_convolve(batch, params["c1"], 2))
        h = jax.nn.relu(_convolve(h, params["c2"], 2)).reshape(batch.shape[0], -1)
        mean, scale = jnp.split(h @ params["code"], 2, -1)
        noise = jax.random.normal(jax.random.key(0), mean.shape)
        z = mean + jnp.exp(scale) * noise
        h = jax.nn.relu(z @ params["back"]).reshape(batch.shape[0], 8, 8, 32)
        numbers = ("NHWC", "HWIO", "NHWC")
        for name in ("d1", "d2"):
            h = lax.conv_transpose(h, params[name], (2, 2), "SAME", dimension_numbers=numbers)
            h = jax.nn.relu(h) if name == "d1" else h
        divergence = 0.5 * (jnp.square(mean) + jnp.exp(2 * scale) - 1 - 2 * scale).sum(-1)
        return jnp.square(h - batch).sum((1, 2, 3)).mean() + divergence.mean()

    params = {
        "c1": f32(4, 4, 3, 16), "c2": f32(4, 4, 16, 32), "code": f32(2048, 64),
        "back": f32(32, 2048), "d1": f32(4, 4, 32, 16), "d2": f32(4, 4, 16, 3),
    }  # fmt: skip
    return trained(loss, params, f32(64, 32, 32, 3))


def quantised_codes() -> Step:
    """The nearest of a table of codes for each place, straight through."""

    def loss(params: Any, batch: Any) -> Any:
        z = jnp.tanh(batch @ params["in"])
        table = params["codes"]
        distance = (z**2).sum(-1, keepdims=True) - 2 * z @ table.T + (table**2).sum(-1)
        code = table[distance.argmin(-1)]
        through = z + lax.stop_gradient(code - z)
        commit = jnp.square(z - lax.stop_gradient(code)).mean()
        learn = jnp.square(code - lax.stop_gradient(z)).mean()
        return jnp.square(through @ params["out"] - batch).mean() + 0.25 * commit + learn

    params = {"in": f32(48, 32), "codes": f32(512, 32), "out": f32(32, 48)}
    return trained(loss, params, f32(64, 64, 48))


def pooled_convolutions() -> Step:
    """Random crops, convolutions with pooling by maximum and a dense head."""

    def loss(params: Any, batch: Any) -> Any:
        padded = jnp.pad(batch["x"], ((0, 0), (2, 2), (2, 2), (0, 0)), mode="edge")
        corners = jax.random.randint(jax.random.key(0), (padded.shape[0], 2), 0, 5)

        def crop(image: Any, at: Any) -> Any:
            return lax.dynamic_slice(image, (at[0], at[1], 0), (32, 32, 3))

        h = jax.vmap(crop)(padded, corners)
        for w in params["convolutions"]:
            h = jax.nn.relu(_convolve(h, w))
            h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return cross_entropy(h.reshape(h.shape[0], -1) @ params["head"], batch["y"])

    params = {"convolutions": [f32(3, 3, 3, 16), f32(3, 3, 16, 32)], "head": f32(2048, 10)}
    return trained(loss, params, {"x": f32(32, 32, 32, 3), "y": i32(32)})


def denoised() -> Step:
    """Noise of the images' size at a random time each, predicted by a network."""

    def loss(params: Any, batch: Any) -> Any:
        first, second = jax.random.split(jax.random.key(0))
        time = jax.random.uniform(first, (batch.shape[0], 1))
        noise = jax.random.normal(second, batch.shape)
        x = jnp.sqrt(1 - time) * batch + jnp.sqrt(time) * noise
        waves = jnp.exp(jnp.linspace(0.0, 6.0, 32)) * time
        h = jnp.concatenate([x, jnp.sin(waves), jnp.cos(waves)], -1)
        h = jax.nn.silu(h @ params["a"])
        return jnp.square(jax.nn.silu(h @ params["b"]) @ params["c"] - noise).mean()

    params = {"a": f32(832, 256), "b": f32(256, 256), "c": f32(256, 768)}
    return trained(loss, params, f32(1024, 768))


def rendered() -> Step:
    """Points along rays in Fourier features, densities composed with a cumulative product."""

    def loss(params: Any, batch: Any) -> Any:
        depth = jnp.linspace(2.0, 6.0, 32)
        points = batch["origin"][:, None] + batch["direction"][:, None] * depth[:, None]
        waves = points[..., None] * 2.0 ** jnp.arange(6)
        h = jnp.concatenate([jnp.sin(waves), jnp.cos(waves)], -1).reshape(*points.shape[:2], -1)
        out = jax.nn.relu(h @ params["a"]) @ params["b"]
        alpha = 1 - jnp.exp(-jax.nn.relu(out[..., 3]) * (4.0 / 32))
        clear = jnp.cumprod(1 - alpha + 1e-10, axis=1)
        weights = alpha * jnp.concatenate([jnp.ones_like(clear[:, :1]), clear[:, :-1]], 1)
        colour = (weights[..., None] * jax.nn.sigmoid(out[..., :3])).sum(1)
        return jnp.square(colour - batch["colour"]).mean()

    params = {"a": f32(36, 128), "b": f32(128, 4)}
    return trained(loss, params, {k: f32(256, 3) for k in ("origin", "direction", "colour")})


# -- numerics -------------------------------------------------------------------------------------


def long_convolution() -> Step:
    """Convolutions as long as the sequence, by Fourier transforms."""

    def loss(params: Any, batch: Any) -> Any:
        h = batch["x"] @ params["in"]
        size = 2 * h.shape[1]
        kernel = jnp.fft.rfft(params["kernel"], n=size, axis=0)
        y = jnp.fft.irfft(jnp.fft.rfft(h, n=size, axis=1) * kernel, n=size, axis=1)
        y = y[:, : h.shape[1]] * jax.nn.sigmoid(batch["x"] @ params["gate"])
        return jnp.square(y @ params["out"] - batch["y"]).mean()

    params = {k: f32(32, 64) for k in ("in", "gate")}
    params |= {"kernel": f32(256, 64), "out": f32(64, 8)}
    return trained(loss, params, {"x": f32(16, 256, 32), "y": f32(16, 256, 8)})


def nearest_neighbours() -> Step:
    """Distances to all points of a table, the nearest of them and a mean of their labels."""

    def step(points: Any, labels: Any, batch: Any) -> Any:
        distance = jnp.square(batch).sum(-1, keepdims=True) - 2 * batch @ points.T
        nearest, at = lax.top_k(-(distance + jnp.square(points).sum(-1)), 16)
        return (jax.nn.softmax(nearest)[..., None] * labels[at]).sum(1)

    return step, (f32(4096, 32), f32(4096, 8), f32(256, 32))


def balanced_transport() -> Step:
    """Sinkhorn's iterations in a loop of a fixed length."""

    def step(batch: Any, y: Any) -> Any:
        cost = jnp.square(batch[:, :, None] - y[None, None]).sum(-1)

        def turn(_: Any, duals: Any) -> Any:
            f, g = duals
            f = -0.1 * jax.nn.logsumexp((g[:, None] - cost) / 0.1, axis=2)
            return f, -0.1 * jax.nn.logsumexp((f[:, :, None] - cost) / 0.1, axis=1)

        start = jnp.zeros(cost.shape[:2]), jnp.zeros((cost.shape[0], cost.shape[2]))
        f, g = lax.fori_loop(0, 20, turn, start)
        return (jnp.exp((f[:, :, None] + g[:, None] - cost) / 0.1) * cost).sum((1, 2))

    return step, (f32(16, 128, 8), f32(128, 8))


def factored_batch() -> Step:
    """Cholesky factors of many matrices, solved with and differentiated."""

    def loss(params: Any, batch: Any) -> Any:
        h = jnp.tanh(batch["x"] @ params["w"])
        kernel = h @ jnp.swapaxes(h, 1, 2) + jnp.eye(h.shape[1])
        factor = jnp.linalg.cholesky(kernel)
        white = lax.linalg.triangular_solve(factor, batch["y"], left_side=True, lower=True)
        logs = jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)).sum(-1)
        return (0.5 * jnp.square(white).sum((1, 2)) + logs).mean()

    return trained(loss, {"w": f32(16, 32)}, {"x": f32(64, 64, 16), "y": f32(64, 64, 1)})


def distinct_rows() -> Step:
    """Tokens without repetition, counts of them, and a table read at those alone."""

    def step(table: Any, tokens: Any) -> Any:
        unique, inverse, counts = jnp.unique(
            tokens, size=8192, return_inverse=True, return_counts=True, fill_value=0
        )
        rows = table[unique] / jnp.maximum(counts, 1)[:, None]
        return rows[inverse.reshape(-1)].sum(0)

    return step, (f32(16384, 64), i32(16384))


def ranked() -> Step:
    """Scores sorted, a loss over places in the order, with gradients through the sort."""

    def loss(params: Any, batch: Any) -> Any:
        scores = (jax.nn.relu(batch["x"] @ params["a"]) @ params["b"])[..., 0]
        order = jnp.argsort(-batch["gain"], axis=1)
        picked = jnp.take_along_axis(scores, order, 1)
        sums = jnp.flip(lax.cumlogsumexp(jnp.flip(picked, 1), axis=1), 1)
        return (sums - picked).mean() + jnp.square(jnp.sort(scores, 1)[:, -8:]).mean()

    params = {"a": f32(32, 64), "b": f32(64, 1)}
    return trained(loss, params, {"x": f32(64, 256, 32), "gain": f32(64, 256)})


def simulated_particles() -> Step:
    """Forces between all pairs of particles, integrated in a scan that keeps every turn."""

    def step(state: Any, masses: Any) -> Any:
        def force(x: Any) -> Any:
            away = x[None] - x[:, None]
            return (
                masses[:, None] * away / (jnp.square(away).sum(-1) + 0.1)[..., None] ** 1.5
            ).sum(1)

        def turn(carry: Any, _: Any) -> Any:
            x, v = carry
            v = v + 0.01 * force(x)
            return (x + 0.01 * v, v), x

        return lax.scan(turn, state, None, length=20)

    return step, ((f32(256, 3), f32(256, 3)), f32(256))


STEPS: dict[str, Callable[[], Step]] = {
    f.__name__: f
    for f in (
        orthogonalised, rooted, whitened, clipped_privately, variational_autoencoder,
        quantised_codes, pooled_convolutions, denoised, rendered, long_convolution,
        nearest_neighbours, balanced_transport, factored_batch, distinct_rows, ranked,
        simulated_particles,
    )
}  # fmt: skip
