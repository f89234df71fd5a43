"""The learner's step over a mesh of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp

from ..interfaces import Update, UpdateOutput
from ..replay.items import Sample
from . import gang

if TYPE_CHECKING:
    from ... import partitioning

Nest = Any
Dispatch = Callable[[Nest, Sample], tuple[Nest, UpdateOutput, dict[str, Nest]]]


class Partition(Protocol):
    """How a step is spread over devices."""

    @property
    def mesh(self) -> partitioning.Mesh: ...

    @property
    def schedule(self) -> Sequence[partitioning.Tactic]: ...


def on_device(shapes: Nest) -> Nest:
    """Shapes of arrays on the host as those that they have on a device: without 64 bits."""
    return jax.tree.map(
        lambda one: jax.ShapeDtypeStruct(one.shape, jax.dtypes.canonicalize_dtype(one.dtype)),
        shapes,
    )


def make_dispatch(
    update: Update, partition: Partition, num_steps: int, device: jax.Device
) -> Dispatch:
    """Several gradient steps over the devices of a mesh.

    Each step is a call of its own: what is worth a mesh takes longer than a call does, and the
    tactics see the update as its author wrote it.

    Args:
      update: written for one device and the global batch.
      partition: the mesh and the tactics, in order.
      num_steps: K.
      device: where actors find the variables, gathered once per dispatch.

    Where devices of several processes are in the mesh, see `gang.make_gang_dispatch`.

    Returns:
      `(state, sample [K, B, ...]) -> (state, output [K, ...], variables)`. The state is donated.

    Raises:
      ValueError: if the mesh needs more devices than there are, or lacks an axis of a tactic.
    """
    from ... import partitioning  # Only who has a mesh pays for it.

    partition.mesh.jax_mesh()  # Says now what is missing, not at the first step.
    if gang.spans_processes(partition.mesh):
        return gang.make_gang_dispatch(update, partition, num_steps, device)

    def step(state: Nest, sample: Sample) -> tuple[Nest, UpdateOutput]:
        return update.step(state, sample)

    spread = partitioning.partition(step, partition.mesh, partition.schedule, donate=("state",))

    @jax.jit
    def variables(state: Nest) -> dict[str, Nest]:
        # Copies: what actors hold must outlive the state, which the next step donates.
        return jax.tree.map(jnp.copy, update.variables(state))

    def run(state: Nest, sample: Sample) -> tuple[Nest, UpdateOutput, dict[str, Nest]]:
        outputs = []
        for k in range(num_steps):
            state, output = spread(state, jax.tree.map(lambda x, k=k: x[k], sample))
            outputs.append(output)
        stacked = jax.tree.map(lambda *steps: jnp.stack(steps), *outputs)
        return state, stacked, jax.device_put(variables(state), device)

    return run
