"""Noisy networks: layers whose weights are drawn, and learn how far to vary."""

from __future__ import annotations

import haiku as hk
import jax
import jax.numpy as jnp

from .columns import Linear


class NoisyLinear(Linear):
    """A linear layer with factorised Gaussian noise on its weights and biases.

    Fortunato et al. (2018), https://arxiv.org/abs/1706.10295, section 3: `w` and `b` are means,
    `w_std` and `b_std` are learned too, and one draw holds for all rows of a batch. A network that
    is applied without a key has no noise: the weights are their means.
    """

    def __init__(self, output_size: int, std: float, name: str | None = None):
        """A layer of `output_size` units.

        Args:
          output_size: N.
          std: sigma_0: deviations are at first this over the root of the number of inputs.
          name: of the module.
        """
        super().__init__(output_size, name=name)
        self._std = std

    def parameters(self, in_size: int, dtype: jax.typing.DTypeLike) -> tuple[jax.Array, jax.Array]:
        bound = in_size**-0.5
        mean = hk.initializers.RandomUniform(-bound, bound)
        deviation = hk.initializers.Constant(self._std * bound)
        sizes = {"w": (in_size, self.output_size), "b": (self.output_size,)}
        w, b = (hk.get_parameter(name, size, dtype, mean) for name, size in sizes.items())
        w_std, b_std = (
            hk.get_parameter(f"{name}_std", size, dtype, deviation) for name, size in sizes.items()
        )
        key = hk.maybe_next_rng_key()
        if key is None:
            return w, b
        noise = jax.random.normal(key, (in_size + self.output_size,), dtype)
        noise = jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))
        of_inputs, of_units = noise[:in_size], noise[in_size:]
        return w + w_std * of_inputs[:, None] * of_units, b + b_std * of_units
