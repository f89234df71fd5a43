"""Layers that compute batches of some sizes as columns, for jax 0.6 on CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import haiku as hk
import jax

_COLUMNS = range(32, 257) if jax.__version_info__ < (0, 7) else range(0)
"""Sizes of the batches that are computed as columns, see `Linear`."""

_WIDE = 256
"""Rows of so many numbers, and as many rows, are not."""


class Linear(hk.Linear):
    """`hk.Linear`, with its parameters, of observations [B, D] that may be computed as columns.

    XLA of jax 0.6 is slow on CPU at products of the backward pass: one of 64 x 256 x 256 takes 142
    us where its right operand is transposed, against 67 us forward, and those of a head of two
    values 46 us in all, against 13. With observations as columns no product is of that kind:
    DQN takes 1,777 and 1,795 gradient steps a second instead of 1,594 twice (`baselines.speed dqn`,
    both variants in turn, two cores). Columns are slower in small batches, up to tenfold, in large
    ones, and with later versions; of lots of 8 steps instead of 128 they take up to a tenth more.
    Of 256 observations and layers as wide gradients are quick in rows too (see `programs.convolutions`):
    SAC's steps with the policy in rows take 1.8 % less.
    """

    def __call__(self, x: jax.Array, *, precision: Any = None) -> jax.Array:
        """[B, D] to [B, N]."""
        if x.ndim == 2 and _as_columns(x.shape[0], max(x.shape[1], self.output_size)):
            return self.on_columns(x.T, precision).T
        w, b = self.parameters(x.shape[-1], x.dtype)
        return jax.numpy.dot(x, w, precision=precision) + b

    def on_columns(self, x: jax.Array, precision: Any = None) -> jax.Array:
        """[D, B] to [N, B]."""
        w, b = self.parameters(x.shape[0], x.dtype)
        return jax.lax.dot_general(w, x, (((0,), (0,)), ((), ())), precision) + b[:, None]

    def parameters(self, in_size: int, dtype: jax.typing.DTypeLike) -> tuple[jax.Array, jax.Array]:
        """The weights [D, N] and biases [N] to compute with; D is `in_size`."""
        w_init = self.w_init or hk.initializers.TruncatedNormal(in_size**-0.5)
        w = hk.get_parameter("w", (in_size, self.output_size), dtype, init=w_init)
        return w, hk.get_parameter("b", (self.output_size,), dtype, init=self.b_init)


def _as_columns(rows: int, width: int) -> bool:
    return rows in _COLUMNS and min(rows, width) < _WIDE


class MLP(hk.Module):
    """`hk.nets.MLP` with its parameters: [B, D] to [B, output_sizes[-1]], of `Linear`s.

    Columns stay columns from layer to layer: XLA does not cancel two transpositions with an
    activation between them, and what they save would be lost.
    """

    def __init__(
        self,
        output_sizes: Sequence[int],
        w_init: hk.initializers.Initializer | None = None,
        activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
        activate_final: bool = False,
        name: str = "mlp",
        linear: Callable[..., Linear] = Linear,
    ):
        """As of `hk.nets.MLP`; `linear` makes a layer, of a size and a name."""
        super().__init__(name)
        self._activation = activation
        self._num_active = len(output_sizes) - (not activate_final)
        more = {} if w_init is None else {"w_init": w_init}
        self._layers = [
            linear(size, name=f"linear_{i}", **more) for i, size in enumerate(output_sizes)
        ]

    def __call__(self, x: jax.Array) -> jax.Array:
        widths = [x.shape[1], *(layer.output_size for layer in self._layers)]
        as_columns = len(widths) > 1 and _as_columns(x.shape[0], max(widths))
        x = x.T if as_columns else x
        for i, layer in enumerate(self._layers):
            x = layer.on_columns(x) if as_columns else layer(x)
            x = self._activation(x) if i < self._num_active else x
        return x.T if as_columns else x
