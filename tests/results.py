"""Comparing what two programs gave."""

import jax
import jax.numpy as jnp
import numpy as np


def raw(tree):
    """Typed keys as their data."""
    return jax.tree_util.tree_map(
        lambda x: (
            jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        ),
        tree,
    )


def follow(step, update, state, batch, tolerance, least=0.0, times=2):
    """Takes steps by a partitioned step and by the update it is of, and compares what they come to;
    returns the last state."""
    wanted, jitted = jax.tree.map(jnp.copy, state), jax.jit(update)
    for _ in range(times):
        state, found = step(state, batch)
        wanted, metrics = jitted(wanted, batch)
    assert_equal_results(raw((state, found)), raw((wanted, metrics)), tolerance, least)
    return state


def nudged(tree, seed):
    """The tree with every float32 larger or smaller by the relative rounding, at random."""
    generator = np.random.default_rng(seed)

    def nudge(x):
        if getattr(x, "dtype", None) != np.float32:
            return x
        signs = generator.choice(np.float32([-1, 1]), x.shape)
        return np.asarray(x) * (1 + signs * np.finfo(np.float32).eps)

    return jax.tree.map(nudge, tree)


def distances(trees, wanted):
    """The largest norm of the difference between an array of `wanted` and those of the trees, for
    each array."""
    return [
        max(np.linalg.norm(np.subtract(a, b, dtype=float)) for a in others)
        for b, *others in zip(*map(jax.tree.leaves, (wanted, *trees)), strict=True)
    ]


def assert_equal_results(got, wanted, tolerance, least=0.0, spread=False):
    """Integers are the same, floats as near as a part of their norm, or of the least that counts
    as one: what is left of large numbers that cancel has their rounding. Where `spread()` gives the
    distances that roundings of what they were computed from bring, three times that is as near."""
    got, wanted = (jax.tree_util.tree_flatten_with_path(tree) for tree in (got, wanted))
    assert got[1] == wanted[1]
    for i, ((path, a), (_, b)) in enumerate(zip(got[0], wanted[0], strict=True)):
        where = jax.tree_util.keystr(path)
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), where
        if np.issubdtype(b.dtype, np.floating):
            error, norm = np.linalg.norm(a - b), np.linalg.norm(b)
            near = error <= tolerance * max(norm, least)
            assert near or (spread and error <= 3 * spread()[i]), (
                f"{where}: error {error:.3g} of norm {norm:.3g}"
            )
        else:
            np.testing.assert_array_equal(a, b, where)


def assert_equal_in_norm(got, wanted, tolerance):
    """The floats of each, as one vector, are as near as a part of its norm."""

    def vector(tree):
        leaves = [np.asarray(x) for x in jax.tree.leaves(tree)]
        return np.concatenate([x.ravel() for x in leaves if np.issubdtype(x.dtype, np.floating)])

    got, wanted = (vector(tree).astype(float) for tree in (got, wanted))
    error, norm = np.linalg.norm(got - wanted), np.linalg.norm(wanted)
    assert error <= tolerance * norm, f"error {error:.3g} of norm {norm:.3g}"


def assert_same_bits(got, wanted):
    """Every array has the same bits, NaN and the sign of 0 among them."""
    got, wanted = (jax.tree_util.tree_flatten_with_path(tree) for tree in (got, wanted))
    assert got[1] == wanted[1]
    for (path, a), (_, b) in zip(got[0], wanted[0], strict=True):
        a, b = np.asarray(a), np.asarray(b)
        where = jax.tree_util.keystr(path)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), where
        assert a.tobytes() == b.tobytes(), where
