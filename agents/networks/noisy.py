"""Noisy networks: layers whose weights are drawn, and learn how far to vary."""

from __future__ import annotations

from collections.abc import Sequence

import haiku as hk
import jax
import jax.numpy as jnp


class NoisyLinear(hk.Module):
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
        super().__init__(name)
        self._size, self._std = output_size, std

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, D] to [B, N]."""
        w, b = self._weights(x.shape[-1], x.dtype)
        return jnp.dot(x, w) + b

    def _weights(self, in_size: int, dtype: jax.typing.DTypeLike) -> tuple[jax.Array, jax.Array]:
        bound = in_size**-0.5
        mean = hk.initializers.RandomUniform(-bound, bound)
        deviation = hk.initializers.Constant(self._std * bound)
        sizes = {"w": (in_size, self._size), "b": (self._size,)}
        w, b = (hk.get_parameter(name, size, dtype, mean) for name, size in sizes.items())
        w_std, b_std = (
            hk.get_parameter(f"{name}_std", size, dtype, deviation) for name, size in sizes.items()
        )
        key = hk.maybe_next_rng_key()
        if key is None:
            return w, b
        noise = jax.random.normal(key, (in_size + self._size,), dtype)
        noise = jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))
        of_inputs, of_units = noise[:in_size], noise[in_size:]
        return w + w_std * of_inputs[:, None] * of_units, b + b_std * of_units


class NoisyMLP(hk.Module):
    """`hk.nets.MLP` of `NoisyLinear` layers, with rectifiers between them."""

    def __init__(
        self,
        output_sizes: Sequence[int],
        std: float,
        activate_final: bool = False,
        name: str | None = None,
    ):
        """Layers of these sizes.

        Args:
          output_sizes: units of each layer.
          std: as of `NoisyLinear`.
          activate_final: True: a rectifier follows the last layer too.
          name: of the module.
        """
        super().__init__(name)
        self._num_active = len(output_sizes) - (not activate_final)
        self._layers = [
            NoisyLinear(size, std, name=f"linear_{i}") for i, size in enumerate(output_sizes)
        ]

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, D] to [B, output_sizes[-1]]."""
        for i, layer in enumerate(self._layers):
            x = jax.nn.relu(layer(x)) if i < self._num_active else layer(x)
        return x
