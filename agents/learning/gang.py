"""The learner's step over devices of several processes, each of which feeds its share of the batch.

The processes, joined by `jax.distributed`, are a gang: each runs the same programs in the same
order on its part of the mesh. What goes in and comes out of a dispatch is local all the same: a
process gives its share of the batch [K, B / N, ...] and gets the priorities of that share, and of
metrics and variables a copy on a device of its own, so that nobody who looks at them starts a
program that the others do not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..interfaces import Update, UpdateOutput
from ..replay.items import Sample
from ..snapshots import key_impl, typed
from . import dispatch

if TYPE_CHECKING:
    from ... import partitioning
    from .mesh import Dispatch, Partition

Nest = Any


def spans_processes(mesh: partitioning.Mesh) -> bool:
    """Whether devices of several processes are in the mesh."""
    return len({device.process_index for device in mesh.devices()}) > 1


def make_gang_dispatch(
    update: Update, partition: Partition, num_steps: int, device: jax.Device
) -> Dispatch:
    """Several gradient steps over the devices of a gang, as one program.

    Args:
      update: written for one device and the global batch.
      partition: a mesh over all devices of all processes, and the tactics, in order.
      num_steps: K.
      device: of this process.

    Returns:
      `(state, sample [K, B / N, ...]) -> (state, output [K, ...], variables)`. A state on a device
      of this process is taken to be the same in every process. The state is donated.

    Raises:
      ValueError: if the mesh leaves devices out, or the tactics cannot be applied.
    """
    return _GangDispatch(update, partition, num_steps, device)


def whole(state: Nest) -> Nest:
    """A state as this process alone can read it; every process of a gang must call it.

    What is spread over processes is gathered; what is not stays as it is.
    """
    leaves = jax.tree.leaves(state)
    if all(leaf.is_fully_addressable for leaf in leaves):
        return state
    everywhere = NamedSharding(leaves[0].sharding.mesh, PartitionSpec())
    words = jax.jit(_to_words, out_shardings=everywhere)(state)
    return _from_words(jax.tree.map(_local, words), state)


class _GangDispatch:
    """See `make_gang_dispatch`."""

    def __init__(self, update: Update, partition: Partition, num_steps: int, device: jax.Device):
        from ... import partitioning

        devices = partition.mesh.devices()
        if list(devices) != jax.devices():
            raise ValueError(
                f"mesh {partition.mesh} holds {len(devices)} devices; the processes of a gang have "
                f"{jax.device_count()} between them. Use all of them, in the order of jax.devices()"
            )

        def step(state: Nest, sample: Sample) -> tuple[Nest, UpdateOutput]:
            return update.step(state, sample)

        self._update, self._num_steps, self._device = update, num_steps, device
        self._size = jax.process_count()
        self._mesh = partition.mesh.jax_mesh()
        self._everywhere = NamedSharding(self._mesh, PartitionSpec())
        # Devices are numbered process by process: the outermost axes that tell processes apart.
        axes, count = list(partition.mesh.axes), 0
        while math.prod(partition.mesh.axes[axis] for axis in axes[:count]) % self._size:
            count += 1
        self._shares = NamedSharding(self._mesh, PartitionSpec(None, tuple(axes[:count])))
        self._parts = math.prod(partition.mesh.axes[axis] for axis in axes[:count])
        # Between processes on CPU every message costs a wake-up of each; copies cost less.
        self._spread = partitioning.partition(
            step, partition.mesh, partition.schedule, bundle=device.platform == "cpu"
        )
        self._run: Callable[..., Any] | None = None
        self._state_shardings: Nest = None

    def __call__(self, state: Nest, sample: Sample) -> tuple[Nest, UpdateOutput, dict[str, Nest]]:
        if self._run is None:
            self._run = self._compile(state, sample)
        if any(leaf.is_fully_addressable for leaf in jax.tree.leaves(state)):
            state = self._place(state)
        state, metrics, priorities, variables = self._run(state, jax.tree.map(self._feed, sample))
        if self._device.platform == "cpu":
            # Collectives of two programs must not meet, and on CPU nothing keeps them apart.
            jax.block_until_ready((state, metrics, priorities, variables))
        output = UpdateOutput(
            jax.tree.map(_local, metrics), None if priorities is None else _share(priorities)
        )
        return state, output, jax.tree.map(_local, variables)

    def _compile(self, state: Nest, sample: Sample) -> Callable[..., Any]:
        rows = {leaf.shape[1] * self._size for leaf in jax.tree.leaves(sample)}
        for number in rows:
            if number % self._parts:
                raise ValueError(
                    f"a global batch of {number} cannot be shared by mesh {self._mesh.shape_tuple}:"
                    f" it must be a multiple of {self._parts}. Change the batch size or the mesh"
                )
        batch = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                (leaf.shape[1] * self._size, *leaf.shape[2:]),
                jax.dtypes.canonicalize_dtype(leaf.dtype),
            ),
            sample,
        )
        one = self._spread.compile(state, batch)
        leaves, structure = jax.tree.flatten(state)
        self._state_shardings = jax.tree.unflatten(structure, one.in_shardings[: len(leaves)])

        def step(state: Nest, batch: Sample) -> tuple[Nest, UpdateOutput]:
            return jax.tree.unflatten(one.out_tree, one.jitted(*jax.tree.leaves((state, batch))))

        unroll = self._device.platform == "cpu" and dispatch.holds_convolution(
            self._update.step, state, batch
        )
        fused = dispatch.fuse(step, self._num_steps, unroll=unroll)

        def run(state: Nest, sample: Sample) -> tuple[Nest, Nest, Any, dict[str, Nest]]:
            state, output = fused(state, sample)
            return state, output.metrics, output.priorities, self._update.variables(state)

        return jax.jit(
            run,
            in_shardings=(self._state_shardings, self._shares),
            out_shardings=(self._state_shardings, self._everywhere, self._shares, self._everywhere),
            donate_argnums=0,
        )

    def _feed(self, leaf: np.ndarray) -> jax.Array:
        """The global array [K, B, ...] of which this process has the rows of its share."""
        leaf = np.asarray(leaf, jax.dtypes.canonicalize_dtype(leaf.dtype))
        shape = (leaf.shape[0], leaf.shape[1] * self._size, *leaf.shape[2:])
        return jax.make_array_from_process_local_data(self._shares, leaf, shape)

    def _place(self, state: Nest) -> Nest:
        """A local state, the same in every process, as a global one."""
        words = jax.tree.map(
            lambda leaf: jax.make_array_from_process_local_data(
                self._everywhere, np.asarray(leaf), leaf.shape
            ),
            _to_words(state),
        )
        spread = jax.jit(
            lambda words: _from_words(words, state), out_shardings=self._state_shardings
        )
        return spread(words)


def _to_words(state: Nest) -> Nest:
    """Typed PRNG keys as their words; all else as it is."""
    return jax.tree.map(lambda x: x if key_impl(x) is None else jax.random.key_data(x), state)


def _from_words(words: Nest, like: Nest) -> Nest:
    """The inverse of `_to_words`."""
    return jax.tree.map(typed, words, like)


def _local(leaf: jax.Array) -> jax.Array:
    """This process's copy of what every device has."""
    return leaf.addressable_data(0)


def _share(leaf: jax.Array) -> Any:
    """This process's rows of what is split in its second dimension."""
    shards = sorted(leaf.addressable_shards, key=lambda shard: shard.index[1].start or 0)
    groups = itertools.groupby(shards, key=lambda shard: shard.index[1].start or 0)
    return np.concatenate([np.asarray(next(copies).data) for _, copies in groups], axis=1)
