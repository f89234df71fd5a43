"""Arguments for an example's step as they are in the middle of training."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from .example import Example, Tree


def mid_training(example: Example, seed: int = 0) -> tuple[Tree, Tree]:
    """A state and a batch with random values; the same for the same seed.

    Nothing is zero that training makes non-zero: an optimizer state left at zero turns the rounding
    of a gradient that should vanish into a whole step, and hides moments that went missing.

    Args:
      example: the example to make arguments of.
      seed: of the values.

    Returns:
      The state as numpy arrays (typed keys as jax arrays), and the batch.
    """
    rng = np.random.default_rng(seed)
    shapes = example.state_shapes

    def leaf(path: tuple, shape: jax.ShapeDtypeStruct) -> jax.typing.ArrayLike:
        names = [str(getattr(key, "key", getattr(key, "name", key))) for key in path]
        name, top = names[-1], {*names}
        if jax.dtypes.issubdtype(shape.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jnp.array([0, seed + 1], np.uint32))
        if name == "key" and shape.dtype == np.uint32:
            return np.array([0, seed + 1], np.uint32)
        if not jnp.issubdtype(shape.dtype, jnp.floating):
            return np.full(shape.shape, 3, shape.dtype)
        fan_in = np.prod(shape.shape[:-1][-3:]) if len(shape.shape) > 1 else 4
        values = rng.standard_normal(shape.shape) / np.sqrt(fan_in)
        if "nu" in top:
            values = 1e-2 * (0.1 + np.square(rng.standard_normal(shape.shape)))
        elif name == "scale":
            values = 1 + 0.1 * rng.standard_normal(shape.shape)
        elif "mu" in top:
            values = 0.1 * values
        return np.asarray(values, shape.dtype)

    state = jax.tree_util.tree_map_with_path(leaf, shapes)
    batch = jax.tree_util.tree_map(np.asarray, example.make_batch(jax.random.PRNGKey(seed)))
    return state, batch
