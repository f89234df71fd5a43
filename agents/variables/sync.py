"""Parameters from the layout of a learner to that of a policy, by a plan made once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ..programs import runtime
from .stored import StoredArray

if TYPE_CHECKING:
    from ...partitioning.transfer import TransferPlan

Nest = Any


class MeshSync:
    """Brings parameters onto the devices of a policy, each block from where it lies.

    Arrays of devices of this process go from shard to shard, and of another's each device gets the
    block that it holds: none is ever whole on a device or on the host, unless a layout has it so.
    Those that lie right are taken as they are.

    Attributes:
      plan: of the arrays that came last; None: none of them was to be moved.
    """

    def __init__(self, shardings: Nest):
        """Moves nothing yet.

        Args:
          shardings: of the parameters, where they are used.
        """
        structure: Any
        self._shardings, structure = jax.tree.flatten(shardings)
        self._structure = structure
        self._plans: dict[tuple[Any, ...], TransferPlan] = {}
        self.plan: TransferPlan | None = None

    def __call__(self, params: Nest) -> Nest:
        """Returns parameters, of the host or of devices, in the policy's layout."""
        leaves = self._structure.flatten_up_to(params)
        placed = [*map(_placed, leaves, self._shardings)]
        moved = [i for i, leaf in enumerate(placed) if leaf is None]
        self.plan = self._planned(leaves, moved) if moved else None
        if self.plan is not None:
            from ...partitioning.transfer.execute import execute  # Only who has a mesh pays for it.

            arrays = {str(i): leaves[i] for i in moved}
            targets = {str(i): self._shardings[i] for i in moved}
            for name, array in execute(self.plan, arrays, targets).items():
                placed[int(name)] = array
        return jax.tree.unflatten(self._structure, placed)

    def _planned(self, leaves: Sequence[Any], moved: Sequence[int]) -> TransferPlan:
        """The plan of some arrays, made anew where their layout at the source is another."""
        key = tuple((i, leaves[i].sharding) for i in moved)
        if key not in self._plans:
            from ...partitioning import transfer

            source, target = (
                {
                    str(i): transfer.ArrayLayout.of_sharding(leaves[i].shape, leaves[i].dtype, one)
                    for i, one in zip(moved, shardings, strict=True)
                }
                for shardings in (
                    [leaves[i].sharding for i in moved],
                    [self._shardings[i] for i in moved],
                )
            )
            self._plans[key] = transfer.plan(source, target, runtime.topology())
        return self._plans[key]


def _placed(leaf: Any, sharding: Any) -> jax.Array | None:
    """An array in its place; None where it goes there from shard to shard."""
    if isinstance(leaf, StoredArray):
        return jax.make_array_from_callback(leaf.shape, sharding, leaf.read)
    if not isinstance(leaf, jax.Array):
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, sharding, lambda at: host[at])
    if leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
        return leaf
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
        return jax.device_put(leaf, sharding)
    return None
