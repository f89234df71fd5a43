"""Steps unlike the models here: strided and grouped convolutions with batch statistics, Cholesky,
associative scans, ensembles under vmap.

Each is (update, state shapes, batch shapes), for memory and FLOPs to be held against the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Step = tuple[Callable[..., Any], Any, Any]


def _f(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _adam(loss: Callable[..., Any], params: Any, *batch: Any, aux: Any = None) -> Step:
    """Adam on a loss; one that has a state besides returns it with its value."""
    state = {"params": params, "mu": params, "nu": params, "count": _f()}
    if aux is not None:
        state["aux"] = aux

    def update(state: Any, batch: Any) -> Any:
        if aux is None:
            value, grads = jax.value_and_grad(loss)(state["params"], *batch)
            rest = {}
        else:
            (value, kept), grads = jax.value_and_grad(loss, has_aux=True)(
                state["params"], state["aux"], *batch
            )
            rest = {"aux": kept}
        count = state["count"] + 1
        mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mu"], grads)
        nu = jax.tree.map(lambda n, g: 0.999 * n + 0.001 * g * g, state["nu"], grads)
        params = jax.tree.map(
            lambda p, m, n: (
                p
                - 1e-3 * (m / (1 - 0.9**count)) / (jnp.sqrt(n / (1 - 0.999**count)) + 1e-8)
            ),
            state["params"], mu, nu,
        )  # fmt: skip
        return {"params": params, "mu": mu, "nu": nu, "count": count, **rest}, value

    return update, state, batch


def _convolve(x: jax.Array, w: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )  # fmt: skip


def batch_normed(
    batch: int = 32, size: int = 32, width: int = 32, blocks: int = 3, groups: int = 4
) -> Step:
    """Blocks of a strided and a grouped convolution, normalised by the statistics of the batch."""
    params: dict[str, Any] = {"stem": _f(3, 3, 3, width)}
    means: dict[str, Any] = {}
    features = width
    for i in range(blocks):
        wide = features * 2
        params[f"block_{i}"] = {
            "strided": _f(3, 3, features, wide),
            "grouped": _f(3, 3, wide // groups, wide),
            "skip": _f(1, 1, features, wide),
            **{k: _f(wide) for k in ("scale_1", "offset_1", "scale_2", "offset_2")},
        }
        means[f"block_{i}"] = {k: _f(wide) for k in ("mean_1", "var_1", "mean_2", "var_2")}
        features = wide
    params["head"] = _f(features, 10)

    def normalise(x: Any, p: Any, old: Any, new: Any, which: int) -> Any:
        mean = x.mean((0, 1, 2))
        var = jnp.square(x).mean((0, 1, 2)) - jnp.square(mean)
        for name, value in (("mean", mean), ("var", var)):
            new[f"{name}_{which}"] = 0.9 * old[f"{name}_{which}"] + 0.1 * value
        return (x - mean) * lax.rsqrt(var + 1e-5) * p[f"scale_{which}"] + p[f"offset_{which}"]

    def loss(params: Any, means: Any, image: Any, label: Any) -> Any:
        x = jax.nn.relu(_convolve(image, params["stem"]))
        kept: dict[str, Any] = {}
        for i in range(blocks):
            p, old = params[f"block_{i}"], means[f"block_{i}"]
            new: dict[str, Any] = {}
            h = jax.nn.relu(normalise(_convolve(x, p["strided"], 2), p, old, new, 1))
            h = normalise(_convolve(h, p["grouped"], 1, groups), p, old, new, 2)
            x = jax.nn.relu(h + _convolve(x, p["skip"], 2))
            kept[f"block_{i}"] = new
        log_probs = jax.nn.log_softmax(x.mean((1, 2)) @ params["head"])
        return -jnp.mean(jnp.take_along_axis(log_probs, label[:, None], -1)), kept

    label = jax.ShapeDtypeStruct((batch,), jnp.int32)
    return _adam(loss, params, _f(batch, size, size, 3), label, aux=means)


def gaussian_process(batch: int = 64, points: int = 32, features: int = 16) -> Step:
    """The marginal likelihood of many small Gaussian processes, with features that are learnt."""
    params = {"w": _f(features, 32), "scale": _f(32), "noise": _f()}

    def one(params: Any, x: Any, y: Any) -> Any:
        h = jnp.tanh(x @ params["w"]) * params["scale"]
        squares = (h * h).sum(-1)
        distances = squares[:, None] + squares[None, :] - 2 * h @ h.T
        kernel = jnp.exp(-distances) + (jnp.exp(params["noise"]) + 1e-3) * jnp.eye(points)
        factor = jnp.linalg.cholesky(kernel)
        white = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
        return 0.5 * jnp.vdot(white, white) + jnp.log(jnp.diagonal(factor)).sum()

    def loss(params: Any, x: Any, y: Any) -> Any:
        return jax.vmap(one, (None, 0, 0))(params, x, y).mean()

    return _adam(loss, params, _f(batch, points, features), _f(batch, points))


def linear_recurrence(batch: int = 32, length: int = 64, features: int = 64) -> Step:
    """A layer whose recurrence is an associative scan."""
    params = {"in": _f(features, features), "gate": _f(features, features), "out": _f(features, 8)}

    def combine(left: Any, right: Any) -> Any:
        return left[0] * right[0], left[1] * right[0] + right[1]

    def loss(params: Any, x: Any, y: Any) -> Any:
        decay = jax.nn.sigmoid(x @ params["gate"])
        _, h = lax.associative_scan(combine, (decay, x @ params["in"]), axis=1)
        return jnp.square(jnp.tanh(h) @ params["out"] - y).mean()

    return _adam(loss, params, _f(batch, length, features), _f(batch, length, 8))


def ensemble(members: int = 5, batch: int = 128, features: int = 16, hidden: int = 64) -> Step:
    """Networks side by side under vmap, each with a loss of its own."""
    params = {
        "w_1": _f(members, features, hidden), "b_1": _f(members, hidden),
        "w_2": _f(members, hidden, hidden), "b_2": _f(members, hidden),
        "w_3": _f(members, hidden, 1),
    }  # fmt: skip

    def one(p: Any, x: Any, y: Any, weight: Any) -> Any:
        h = jax.nn.relu(x @ p["w_1"] + p["b_1"])
        h = jax.nn.relu(h @ p["w_2"] + p["b_2"])
        return (weight * jnp.square((h @ p["w_3"])[:, 0] - y)).mean()

    def loss(params: Any, x: Any, y: Any, weights: Any) -> Any:
        return jax.vmap(one, (0, None, None, 0))(params, x, y, weights).sum()

    return _adam(loss, params, _f(batch, features), _f(batch), _f(members, batch))


STEPS: dict[str, Callable[..., Step]] = {
    "batch_normed": batch_normed,
    "gaussian_process": gaussian_process,
    "linear_recurrence": linear_recurrence,
    "ensemble": ensemble,
}
