"""The MLP's step written by hand for a mesh, as a reference for the partitioner."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from . import optimizers
from .example import Example

Tree = Any


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def enter(x: jax.Array, axis: str) -> jax.Array:
    """The identity with a gradient summed over the axis, at the start of a split layer."""
    return x


enter.defvjp(lambda x, axis: (x, None), lambda axis, _, g: (lax.psum(g, axis),))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def leave(x: jax.Array, axis: str) -> jax.Array:
    """The sum over the axis with the identity as gradient, at the end of a split layer."""
    return lax.psum(x, axis)


leave.defvjp(lambda x, axis: (lax.psum(x, axis), None), lambda axis, _, g: (g,))


def mlp_step(
    example: Example, mesh: Mesh, model: str | None, zero: bool
) -> tuple[Callable[[Tree, Tree], tuple[Tree, Tree]], Tree, Tree]:
    """Writes the step of an "mlp" example with `shard_map`.

    The batch lies over the axis "data".

    Args:
      example: an MLP without bias or clipping.
      mesh: has the axis "data" and, where given, the model axis.
      model: the axis that up matrices' columns and down matrices' rows are split over, or None.
      zero: True if parameters and moments are split over "data" as well (ZeRO-3).

    Returns:
      The step to `jit`, and the PartitionSpecs of state and batch.
    """
    config = example.config
    optimizer = optimizers.make(config.optimizer)
    data = mesh.shape["data"]

    def spec(path: Any, leaf: jax.ShapeDtypeStruct) -> PartitionSpec:
        if not leaf.shape:
            return PartitionSpec()
        up = any(getattr(key, "key", None) == "up" for key in path)
        dims: list[Any] = [None, None]
        dims[1 if up else 0] = model
        if zero:
            # The dimension that the model axis leaves whole, else the first.
            dims[0 if up or model is None else 1] = "data"
        return PartitionSpec(*dims)

    state_specs = jax.tree_util.tree_map_with_path(spec, example.state_shapes)
    batch_specs = {name: PartitionSpec("data") for name in example.batch_shapes}

    def whole(path: Any, leaf: jax.Array) -> jax.Array:
        return lax.all_gather(leaf, "data", axis=_split(path), tiled=True) if zero else leaf

    def total(path: Any, grad: jax.Array) -> jax.Array:
        if not zero:
            return lax.psum(grad, "data")
        return lax.psum_scatter(grad, "data", scatter_dimension=_split(path), tiled=True)

    def _split(path: Any) -> int:
        up = any(getattr(key, "key", None) == "up" for key in path)
        return 0 if up or model is None else 1

    def local_loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        for i in range(config.num_layers):
            layer = params[f"layer_{i}"]
            if model is not None and i:
                x = enter(x, model)
            x = jax.nn.relu(x @ layer["up"]["w"]) @ layer["down"]["w"]
            if model is not None:
                x = leave(x, model)
        return jnp.sum(jnp.square(x - y)) / (x.size * data)

    def local(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        params = jax.tree_util.tree_map_with_path(whole, state["params"])
        value, grads = jax.value_and_grad(local_loss)(params, batch["x"], batch["y"])
        grads = jax.tree_util.tree_map_with_path(total, grads)
        new, opt = optimizer.apply(grads, state["opt"], state["params"])
        return {"params": new, "opt": opt}, {"loss": lax.psum(value, "data")}

    step = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(state_specs, batch_specs),
        out_specs=(state_specs, {"loss": PartitionSpec()}),
        check_vma=False,
    )
    return step, state_specs, batch_specs
