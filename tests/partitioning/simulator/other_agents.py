"""More steps as other people write them: reinforcement learning, images, language, optimizers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .other_sequences import Step, cross_entropy, f32, i32, trained

# -- reinforcement learning -----------------------------------------------------------------------


def _mlp(params: Any, x: Any) -> Any:
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def _mlp_params(*sizes: int) -> Any:
    return [{"w": f32(a, b), "b": f32(b)} for a, b in itertools.pairwise(sizes)]


def conservative_q() -> Step:
    """Critics on observations repeated for sampled actions, with logarithms of summed exponents."""

    def loss(params: Any, batch: Any) -> Any:
        obs, rows = batch["obs"], batch["obs"].shape[0]
        random = jax.random.uniform(jax.random.key(0), (rows * 10, 6), minval=-1.0)
        wide = jnp.repeat(obs, 10, axis=0)
        tiled = jnp.tile(batch["action"][:, None], (1, 10, 1)).reshape(rows * 10, 6)
        total = 0.0
        for critic in params["critics"]:
            q = _mlp(critic, jnp.concatenate([obs, batch["action"]], -1))[:, 0]
            total += jnp.square(q - batch["target"]).mean()
            values = [
                _mlp(critic, jnp.concatenate([wide, a], -1)).reshape(rows, 10)
                for a in (random, tiled)
            ]
            total += (jax.nn.logsumexp(jnp.concatenate(values, 1), axis=1) - q).mean()
        return total

    params = {"critics": [_mlp_params(23, 256, 256, 1)] * 2}
    return trained(loss, params, {"obs": f32(256, 17), "action": f32(256, 6), "target": f32(256)})


def categorical_q() -> Step:
    """Distributional learning with the projection scattered onto the atoms."""

    def project(support: Any, probs: Any, atoms: int) -> Any:
        b = jnp.clip((support + 10.0) / 20.0 * (atoms - 1), 0, atoms - 1)
        low, high = jnp.floor(b).astype(jnp.int32), jnp.ceil(b).astype(jnp.int32)
        even = (low == high).astype(b.dtype)
        out = jnp.zeros(atoms).at[low].add(probs * (high - b + even))
        return out.at[high].add(probs * (b - low))

    def loss(params: Any, batch: Any) -> Any:
        atoms = jnp.linspace(-10.0, 10.0, 51)
        rows = batch["obs"].shape[0]
        after = jax.nn.softmax(_mlp(params, batch["next"]).reshape(rows, 18, 51))
        best = (after * atoms).sum(-1).argmax(-1)
        after = jnp.take_along_axis(after, best[:, None, None], 1)[:, 0]
        support = batch["reward"][:, None] + 0.99 * atoms
        target = lax.stop_gradient(jax.vmap(project, (0, 0, None))(support, after, 51))
        logits = _mlp(params, batch["obs"]).reshape(rows, 18, 51)
        logits = jnp.take_along_axis(logits, batch["action"][:, None, None], 1)[:, 0]
        return -(target * jax.nn.log_softmax(logits)).sum(-1).mean()

    batch = {"obs": f32(512, 64), "next": f32(512, 64), "action": i32(512), "reward": f32(512)}
    return trained(loss, _mlp_params(64, 256, 918), batch)


def group_relative_policy() -> Step:
    """Log-probabilities of tokens gathered over a vocabulary, old ones and a reference beside."""

    def log_probs(params: Any, tokens: Any) -> Any:
        h = params["embed"][tokens[:, :-1]]
        h = h + jax.nn.gelu(h @ params["up"]) @ params["down"]
        logits = jax.nn.log_softmax(h @ params["embed"].T)
        return jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]

    def loss(params: Any, batch: Any) -> Any:
        rows = batch["tokens"].shape[0]
        rewards = batch["reward"].reshape(rows // 8, 8)
        advantage = (rewards - rewards.mean(1, keepdims=True)) / (
            rewards.std(1, keepdims=True) + 1e-6
        )
        advantage = advantage.reshape(rows, 1)
        now = log_probs(params, batch["tokens"])
        ratio = jnp.exp(now - batch["old"])
        clipped = jnp.clip(ratio, 0.8, 1.2)
        gain = jnp.minimum(ratio * advantage, clipped * advantage)
        away = batch["reference"] - now
        return -((gain - 0.04 * (jnp.exp(away) - away - 1)) * batch["mask"]).mean()

    params = {"embed": f32(1024, 64), "up": f32(64, 256), "down": f32(256, 64)}
    shapes = {k: f32(64, 32) for k in ("old", "reference", "mask")}
    return trained(loss, params, {"tokens": i32(64, 33), "reward": f32(64), **shapes})


def shuffled_policy() -> Step:
    """Advantages by a reversed scan, then epochs of shuffled minibatches, as in PureJaxRL."""

    def loss(params: Any, rows: Any) -> Any:
        obs, action, old, advantage, target = rows
        out = _mlp(params, obs)
        log_prob = jax.nn.log_softmax(out[:, :6])
        ratio = jnp.exp(jnp.take_along_axis(log_prob, action[:, None], 1)[:, 0] - old)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
        return -gain.mean() + jnp.square(out[:, 6] - target).mean()

    def step(state: Any, batch: Any, key: Any) -> Any:
        def back(carry: Any, now: Any) -> Any:
            advantage, after = carry
            reward, value, done = now
            advantage = reward + 0.99 * after * (1 - done) - value + 0.95 * (1 - done) * advantage
            return (advantage, value), advantage

        first = jnp.zeros_like(batch["value"][0])
        parts = batch["reward"], batch["value"], batch["done"]
        _, advantage = lax.scan(back, (first, first), parts, reverse=True)
        rows = batch["obs"], batch["action"], batch["old"], advantage, advantage + batch["value"]
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)

        def epoch(params: Any, key: Any) -> Any:
            order = jax.random.permutation(key, rows[1].shape[0])
            parts = jax.tree.map(lambda x: x[order].reshape(4, -1, *x.shape[1:]), rows)

            def minibatch(params: Any, part: Any) -> Any:
                grads = jax.grad(loss)(params, part)
                return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), None

            return lax.scan(minibatch, params, parts)

        return lax.scan(epoch, state, jax.random.split(key, 4))[0]

    shapes = {k: f32(32, 256) for k in ("reward", "value", "done", "old")}
    batch = {"obs": f32(32, 256, 32), "action": i32(32, 256), **shapes}
    key = jax.eval_shape(lambda: jax.random.key(0))
    return step, (_mlp_params(32, 256, 256, 7), batch, key)


def prioritised_rows() -> Step:
    """Rows drawn by priority with a cumulative sum and a search, and priorities written back."""

    def step(state: Any, key: Any) -> Any:
        weights = state["priority"] ** 0.6
        sums = jnp.cumsum(weights)
        at = jnp.searchsorted(sums, jax.random.uniform(key, (2048,)) * sums[-1])
        rows = state["rows"][at]
        error = jnp.square(_mlp(state["params"], rows)).sum(-1)
        return {**state, "priority": state["priority"].at[at].set(error)}, rows.mean()

    params = _mlp_params(64, 256, 4)
    return step, (
        {"priority": f32(16384), "rows": f32(16384, 64), "params": params},
        jax.eval_shape(lambda: jax.random.key(0)),
    )


def evolution() -> Step:
    """Mirrored perturbations of all parameters, ranks of their returns."""

    def step(state: Any, key: Any, obs: Any, y: Any) -> Any:
        noise = jax.random.normal(key, (64, state.shape[0]))
        members = jnp.concatenate([state + 0.1 * noise, state - 0.1 * noise])

        def value(member: Any) -> Any:
            first, second = member[:8192].reshape(32, 256), member[8192:].reshape(256, 8)
            return -jnp.square(jnp.tanh(obs @ first) @ second - y).mean()

        ranks = jnp.argsort(jnp.argsort(jax.vmap(value)(members))) / 127.0 - 0.5
        return state + 0.01 * (ranks[:64] - ranks[64:]) @ noise

    key = jax.eval_shape(lambda: jax.random.key(0))
    return step, (f32(10240), key, f32(16, 32), f32(16, 8))


def random_ensemble() -> Step:
    """Critics under vmap, a random subset of them taken for the target."""

    def loss(params: Any, batch: Any) -> Any:
        q = jax.vmap(_mlp, (0, None))(params, batch["x"])[..., 0]
        chosen = jax.random.choice(jax.random.key(0), 10, (2,), replace=False)
        target = lax.stop_gradient(q)[chosen].min(0) * 0.99 + batch["reward"]
        return jnp.square(q - target).mean()

    params = jax.tree.map(lambda s: f32(10, *s.shape), _mlp_params(23, 256, 256, 1))
    return trained(loss, params, {"x": f32(256, 23), "reward": f32(256)})


# -- language -------------------------------------------------------------------------------------


def _block(layer: Any, h: Any, dtype: Any = jnp.float32) -> Any:
    layer = jax.tree.map(lambda w: w.astype(dtype), layer)
    rows, length, width = h.shape
    x = h * lax.rsqrt(jnp.square(h).mean(-1, keepdims=True) + 1e-6)
    q, k, v = (
        a.reshape(rows, length, 4, width // 4)
        for a in jnp.split(x.astype(dtype) @ layer["qkv"], 3, -1)
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8.0
    mask = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores.astype(jnp.float32), -1e9)).astype(dtype)
    h = h + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(rows, length, width) @ layer["out"]
    x = h * lax.rsqrt(jnp.square(h).mean(-1, keepdims=True) + 1e-6)
    return h + jax.nn.silu(x.astype(dtype) @ layer["up"]) @ layer["down"]


_LAYER = {"qkv": (128, 384), "out": (128, 128), "up": (128, 512), "down": (512, 128)}


def recomputed_blocks() -> Step:
    """Blocks of a transformer in a scan, each computed again for its gradient."""

    def loss(params: Any, batch: Any) -> Any:
        h = params["embed"][batch["tokens"]]
        block = jax.checkpoint(lambda h, layer: (_block(layer, h), None))
        h, _ = lax.scan(block, h, params["layers"])
        return cross_entropy(h @ params["embed"].T, batch["labels"])

    params = {
        "embed": f32(512, 128), "layers": {k: f32(4, *s) for k, s in _LAYER.items()}
    }  # fmt: skip
    return trained(loss, params, {"tokens": i32(16, 64), "labels": i32(16, 64)})


def half_precision_blocks() -> Step:
    """The same unrolled in bfloat16, with dropout."""

    def loss(params: Any, batch: Any) -> Any:
        h = params["embed"][batch["tokens"]]
        for i, layer in enumerate(params["layers"]):
            h = _block(layer, h, jnp.bfloat16).astype(jnp.float32)
            kept = jax.random.bernoulli(jax.random.fold_in(jax.random.key(0), i), 0.9, h.shape)
            h = jnp.where(kept, h / 0.9, 0.0)
        return cross_entropy(h @ params["embed"].T, batch["labels"])

    layers = [{k: f32(*s) for k, s in _LAYER.items()}] * 2
    params = {"embed": f32(512, 128), "layers": layers}
    return trained(loss, params, {"tokens": i32(16, 64), "labels": i32(16, 64)})


def decoding() -> Step:
    """A loop that writes keys and values into a cache and stops at the end of all sequences."""

    def step(params: Any, state: Any, batch: Any) -> Any:
        rows = batch.shape[0]

        def turn(carry: Any) -> Any:
            at, token, keys, values, out, done = carry
            h = params["embed"][token]
            q, k, v = jnp.split(h @ params["qkv"], 3, -1)
            keys = lax.dynamic_update_slice(keys, k[:, None], (0, at, 0))
            values = lax.dynamic_update_slice(values, v[:, None], (0, at, 0))
            scores = jnp.einsum("bd,btd->bt", q, keys) / 8.0
            scores = jnp.where(jnp.arange(keys.shape[1]) <= at, scores, -1e9)
            h = h + jnp.einsum("bt,btd->bd", jax.nn.softmax(scores), values) @ params["out"]
            token = (h @ params["embed"].T).argmax(-1).astype(jnp.int32)
            out = lax.dynamic_update_slice(out, token[:, None], (0, at))
            return at + 1, token, keys, values, out, done | (token == 0)

        start = (
            jnp.int32(0), batch, state["keys"], state["values"], jnp.zeros((rows, 128), jnp.int32),
            jnp.zeros(rows, bool),
        )  # fmt: skip
        last = lax.while_loop(lambda c: (c[0] < 128) & ~c[5].all(), turn, start)
        return last[4], {"keys": last[2], "values": last[3]}

    cache = {k: f32(32, 128, 128) for k in ("keys", "values")}
    params = {"embed": f32(1024, 128), "qkv": f32(128, 384), "out": f32(128, 128)}
    return step, (params, cache, i32(32))


def experts_with_capacity() -> Step:
    """Tokens scattered into the slots of the experts that a router picks, and picked up again."""

    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        gates = jax.nn.softmax(x @ params["router"])
        weight, expert = lax.top_k(gates, 2)
        expert, weight = expert.reshape(-1), weight.reshape(-1)
        chosen = jax.nn.one_hot(expert, 8, dtype=jnp.int32)
        place = ((jnp.cumsum(chosen, 0) - 1) * chosen).sum(-1)
        rows = jnp.repeat(x, 2, axis=0)
        slots = jnp.zeros((8, 640, 64)).at[expert, place].set(rows, mode="drop")
        hidden = jax.nn.relu(jnp.einsum("ecd,edh->ech", slots, params["up"]))
        out = jnp.einsum("ech,ehd->ecd", hidden, params["down"])
        out = out.at[expert, place].get(mode="fill", fill_value=0.0) * weight[:, None]
        return jnp.square(out.reshape(-1, 2, 64).sum(1) - batch["y"]).mean()

    params = {"router": f32(64, 8), "up": f32(8, 64, 256), "down": f32(8, 256, 64)}
    return trained(loss, params, {"x": f32(2048, 64), "y": f32(2048, 64)})


def ragged_experts() -> Step:
    """Tokens sorted by expert, and products of ragged groups."""

    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        expert = (x @ params["router"]).argmax(-1)
        order = jnp.argsort(expert)
        sizes = jnp.bincount(expert, length=8)
        hidden = jax.nn.relu(lax.ragged_dot(x[order], params["up"], sizes))
        out = lax.ragged_dot(hidden, params["down"], sizes)[jnp.argsort(order)]
        return jnp.square(out - batch["y"]).mean()

    params = {"router": f32(64, 8), "up": f32(8, 64, 128), "down": f32(8, 128, 64)}
    return trained(loss, params, {"x": f32(512, 64), "y": f32(512, 64)})


def embedding_bags() -> Step:
    """Large tables looked up many times, whose gradients are scattered."""

    def loss(params: Any, batch: Any) -> Any:
        bags = [t[batch["ids"][:, i]].mean(1) for i, t in enumerate(params["tables"])]
        x = jnp.concatenate(bags, -1)
        pairs = jnp.einsum("bi,bj->bij", x, x).reshape(x.shape[0], -1)
        return jnp.square(_mlp(params["top"], pairs)[:, 0] - batch["y"]).mean()

    params = {"tables": [f32(8192, 16)] * 4, "top": _mlp_params(4096, 64, 1)}
    return trained(loss, params, {"ids": i32(256, 4, 20), "y": f32(256)})


def integer_products() -> Step:
    """Weights and activations in eight bits with scales."""

    def step(weights: Any, scales: Any, batch: Any) -> Any:
        h = batch
        for w, scale in zip(weights, scales, strict=True):
            largest = jnp.abs(h).max(-1, keepdims=True) / 127.0
            q = jnp.round(h / largest).astype(jnp.int8)
            product = lax.dot_general(
                q, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32
            )
            h = jax.nn.relu(product.astype(jnp.float32) * largest * scale)
        return h

    weight = jax.ShapeDtypeStruct((512, 512), jnp.int8)
    return step, ([weight] * 3, [f32(512)] * 3, f32(1024, 512))


def contrastive() -> Step:
    """Two towers and the similarities of all pairs of a batch."""

    def loss(params: Any, batch: Any) -> Any:
        a, b = _mlp(params["a"], batch["a"]), _mlp(params["b"], batch["b"])
        a = a / jnp.linalg.norm(a, axis=-1, keepdims=True)
        b = b / jnp.linalg.norm(b, axis=-1, keepdims=True)
        logits = a @ b.T * jnp.exp(params["scale"])
        own = jnp.arange(logits.shape[0])
        return (cross_entropy(logits, own) + cross_entropy(logits.T, own)) / 2

    params = {"a": _mlp_params(64, 256, 64), "b": _mlp_params(32, 256, 64), "scale": f32()}
    return trained(loss, params, {"a": f32(512, 64), "b": f32(512, 32)})


STEPS: dict[str, Callable[[], Step]] = {
    f.__name__: f
    for f in (
        conservative_q, categorical_q, group_relative_policy, shuffled_policy, prioritised_rows,
        evolution, random_ensemble, recomputed_blocks, half_precision_blocks, decoding,
        experts_with_capacity, ragged_experts, embedding_bags, integer_products, contrastive,
    )
}  # fmt: skip
