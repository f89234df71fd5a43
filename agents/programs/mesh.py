"""The learner's program over a mesh of devices, of one process or of several.

Processes joined by `jax.distributed` are a gang: each runs the same programs in the same order on
its part of the mesh, and gives its share of every batch. One process is a gang of one. The inputs
and outputs of a dispatch are local all the same. Each of N processes gives [K, B / N, ...] and gets
the priorities of that share. It gets metrics and variables as copies on a device of its own, so
that nobody who looks at them starts a program that the others do not.

No array of the state is ever whole on a device, unless the tactics leave it so.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..interfaces import Update, UpdateOutput
from ..replay.items import Sample
from ..snapshots import key_impl, typed, words_of
from . import compilation, convolutions, dispatch, planning, runtime
from .held import make_by_devices
from .placement import Partition

Nest = Any
_GATHERED_BYTES = 32 << 20
"""Bytes of variables that several processes gather in one program, about."""


class MeshProgram:
    """K gradient steps over the devices of a mesh, as one program; see `plain.PlainProgram`.

    Attributes:
      state_shapes: of the state, as `jax.ShapeDtypeStruct` with shardings.
      plan: the partitioner's, of one gradient step.
    """

    def __init__(
        self,
        update: Update,
        partition: Partition,
        num_steps: int,
        device: jax.Device,
        key: jax.Array,
        samples: Sample,
    ):
        """Plans; nothing is made or compiled yet.

        Args:
          update: written for one device and the global batch.
          partition: the mesh and the tactics, in order.
          num_steps: K.
          device: of this process; where actors find variables.
          key: such as `init` will get.
          samples: shapes and dtypes of what this process gives, [K, B / N, ...].

        Raises:
          ValueError: if the mesh needs more devices than there are, leaves some of a gang out, or
            lacks an axis of a tactic, or the batch cannot be shared.
        """
        self._update, self._num_steps, self._device = update, num_steps, device
        self._mesh = partition.mesh.jax_mesh()
        devices = partition.mesh.devices()
        self._size = len({one.process_index for one in devices})
        if self._size > 1 and list(devices) != jax.devices():
            raise ValueError(
                f"mesh {partition.mesh} holds {len(devices)} devices; the processes of a gang have "
                f"{jax.device_count()} between them. Use all of them, in the order of jax.devices()"
            )
        self._everywhere = NamedSharding(self._mesh, PartitionSpec())
        self._shares = self._shared(partition.mesh.axes, samples)

        batch = dispatch.on_device(samples, drop=1, times=self._size)
        spread = planning.spread_update(update, partition, batch)
        self.plan = spread.step.plan
        self._follow(spread.step)
        self._state = spread.state
        self.state_shapes = spread.state.nest
        self._sample_shardings, self._run = self._fused(spread)
        self._sample_leaves = jax.tree.leaves(self._sample_shardings)
        self._gathers: dict[Any, tuple[Any, list[Callable[[Nest], list]]]] = {}

    def _shared(self, axes: dict[str, int], samples: Sample) -> NamedSharding:
        """Returns the sharding of rows [K, B, ...] in which each process of a gang has its share.

        Raises:
          ValueError: if a batch cannot be shared by the mesh.
        """
        names, count = list(axes), 0
        # Devices are numbered process by process: the outermost axes that tell processes apart.
        while math.prod(axes[name] for name in names[:count]) % self._size:
            count += 1
        parts = math.prod(axes[name] for name in names[:count])
        for number in {leaf.shape[1] * self._size for leaf in jax.tree.leaves(samples)}:
            if number % parts:
                raise ValueError(
                    f"a global batch of {number} cannot be shared by mesh {self._mesh.shape_tuple}:"
                    f" it must be a multiple of {parts}. Change the batch size or the mesh"
                )
        return NamedSharding(self._mesh, PartitionSpec(None, tuple(names[:count])))

    def _follow(self, one: Any) -> None:
        """Orders the mesh's devices as the plan does; each process keeps its share of the rows."""
        matrix = self.plan.matrix
        if matrix is None:
            return
        self._mesh = one.jax_mesh
        self._everywhere = NamedSharding(self._mesh, PartitionSpec())
        if self._size > 1:
            split = matrix.split().rows
            sizes = [math.prod(row) for row in split.values()]
            parts = jax.sharding.Mesh(self._mesh.devices.reshape(sizes), tuple(split))
            # What tells processes apart is the outermost level.
            names = tuple(name for name, row in split.items() if row[-1] > 1)
            self._shares = NamedSharding(parts, PartitionSpec(None, names))

    def _fused(
        self, spread: planning.SpreadUpdate
    ) -> tuple[Sample, Callable[..., tuple[Nest, UpdateOutput]]]:
        """Returns the shardings of batches, and the program of a dispatch."""

        def stacked(sharding: NamedSharding) -> NamedSharding:
            """Adds the dimension K; with several processes each has its share of the rows."""
            spec = PartitionSpec(None, *sharding.spec)
            return self._shares if self._size > 1 else NamedSharding(self._mesh, spec)

        fused = dispatch.fuse(spread.update.step, self._num_steps)
        fused = convolutions.for_device(fused, self._device)
        placed = jax.tree.map(stacked, spread.sample)
        gathered = UpdateOutput(
            jax.tree.map(lambda _: self._everywhere, spread.output.metrics),
            jax.tree.map(stacked, spread.output.priorities),
        )
        shardings = jax.tree.map(lambda shape: shape.sharding, spread.state.held)
        run = jax.jit(
            fused,
            in_shardings=(shardings, placed),
            out_shardings=(shardings, gathered),
            donate_argnums=0,
        )
        return placed, run

    def init(self, key: jax.Array) -> Nest:
        """The first state, each part made where it stays."""
        # As words on the host: a key on one device cannot be an argument of several processes.
        words = np.asarray(words_of(key))
        make = make_by_devices(
            lambda words: self._update.init(typed(words, key)),
            self.state_shapes,
            functools.partial(compilation.compile_once, device=self._device),
        )
        return self._settled(self._state.pack(make(words)))

    def place(self, sample: Sample) -> Sample:
        """A batch of this process on the devices, but for the items' keys; runs no program."""
        sample = dispatch.without_keys(sample)
        if self._size == 1:
            return jax.device_put(sample, self._sample_shardings)
        return jax.tree.map(self._feed, sample, self._sample_shardings)

    def _feed(self, leaf: Any, sharding: NamedSharding) -> jax.Array:
        if isinstance(leaf, jax.Array) and leaf.sharding == sharding:
            return leaf
        leaf = np.asarray(leaf, jax.dtypes.canonicalize_dtype(leaf.dtype))
        shape = (leaf.shape[0], leaf.shape[1] * self._size, *leaf.shape[2:])
        return jax.make_array_from_process_local_data(sharding, leaf, shape)

    def __call__(self, state: Nest, sample: Sample) -> tuple[Nest, UpdateOutput]:
        """K gradient steps; the state is donated."""
        if self._size > 1:
            sample = self.place(sample)
        else:
            sample = dispatch.without_keys(sample)
            if not self._takes(sample):
                sample = self.place(sample)
        with runtime.COLLECTIVES:
            state, output = self._settled(self._run(state, sample))
        if self._size > 1:
            priorities = output.priorities
            priorities = None if priorities is None else _share(priorities)
            output = UpdateOutput(jax.tree.map(_local, output.metrics), priorities)
        return state, output

    def _takes(self, sample: Sample) -> bool:
        """True if the compiled program places a batch itself, quicker than Python can.

        It takes numpy arrays, and refuses arrays that are committed to other devices.
        """
        pairs = zip(jax.tree.leaves(sample), self._sample_leaves, strict=True)
        return all(
            isinstance(leaf, np.ndarray) or (isinstance(leaf, jax.Array) and leaf.sharding == own)
            for leaf, own in pairs
        )

    def _settled(self, arrays: Nest) -> Nest:
        if self._device.platform == "cpu" and self._mesh.size > 1:
            # Collectives of two programs must not meet, and on CPU nothing keeps them apart.
            jax.block_until_ready(arrays)
        return arrays

    def variables(self, state: Nest, names: Sequence[str], keep: bool = True) -> list[Nest]:
        """Copies of the named variables on this process's device.

        Every process of a gang must call it.

        Args:
          state: stays as it is.
          names: of collections of variables, as the update names them.
          keep: False: for a process that only takes part; it holds one result at a time.
        """
        # Between devices of one process the copies stay spread, and are put together behind.
        structure, gathers = self._gathering(tuple(names), spread=self._size == 1)
        leaves: list[jax.Array] = []
        for gather in gathers:
            with runtime.COLLECTIVES:
                found = self._settled(gather(state))
            if keep and self._size > 1:
                leaves += map(_local, found)
            elif keep:
                leaves += jax.device_put(found, self._device)
        return jax.tree.unflatten(structure, leaves) if keep else []

    def variables_on_mesh(self, state: Nest, names: Sequence[str]) -> list[Nest]:
        """Copies of the named variables that lie as the state does; no device has more of them.

        Every process of a gang must call it.
        """
        structure, gathers = self._gathering(tuple(names), spread=True)
        with runtime.COLLECTIVES:
            leaves = [leaf for gather in gathers for leaf in self._settled(gather(state))]
        return jax.tree.unflatten(structure, leaves)

    def _gathering(
        self, names: tuple[str, ...], spread: bool
    ) -> tuple[Any, list[Callable[[Nest], list]]]:
        """The structure of some variables, and programs that give their leaves, some each: as they
        lie, or as copies on every device."""
        if (names, spread) not in self._gathers:
            self._gathers[names, spread] = self._make_gathering(names, spread)
        return self._gathers[names, spread]

    def _make_gathering(
        self, names: tuple[str, ...], spread: bool
    ) -> tuple[Any, list[Callable[[Nest], list]]]:
        """As `_gathering`, made anew."""

        def chosen(state: Nest) -> list[Nest]:
            variables = self._update.variables(self._state.spread(state))
            return [variables[name] for name in names]

        def some(state: Nest, first: int, last: int) -> list[jax.Array]:
            # Copies: what actors hold must outlive the state, which the next step donates.
            return [jnp.copy(leaf) for leaf in jax.tree.leaves(chosen(state))[first:last]]

        shapes, structure = jax.tree.flatten(jax.eval_shape(chosen, self._state.held))
        ends, held = [], 0
        for i, shape in enumerate(shapes):
            held += math.prod(shape.shape) * shape.dtype.itemsize
            if (not spread and held >= _GATHERED_BYTES) or i == len(shapes) - 1:
                ends.append(i + 1)
                held = 0
        options: Any = {} if spread else {"out_shardings": self._everywhere}
        return structure, [
            jax.jit(functools.partial(some, first=first, last=last), **options)
            for first, last in itertools.pairwise([0, *ends])
        ]

    def put(self, state: Nest) -> Nest:
        """A state as this program holds it, of numpy arrays or of arrays spread as its own are.

        PRNG keys are words. Arrays that lie right become part of the state.
        """
        return self._state.pack(jax.tree.map(self._put, state, self.state_shapes))

    def unpacked(self, state: Nest) -> Nest:
        """The state as the update has it; of a pipeline each array lies on its stage's devices."""
        return self._state.unpack(state)

    def _put(self, leaf: Any, shape: jax.ShapeDtypeStruct) -> jax.Array:
        sharding: Any = shape.sharding
        if not (
            isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
        ):
            host = np.asarray(leaf)
            leaf = jax.make_array_from_callback(
                host.shape, sharding, lambda at: host[at], dtype=host.dtype
            )
        if key_impl(shape) is not None:
            leaf = jax.jit(lambda words: typed(words, shape), out_shardings=sharding)(leaf)
        return leaf


def _local(leaf: jax.Array) -> jax.Array:
    """Returns this process's copy of an array that every device has whole."""
    return leaf.addressable_data(0)


def _share(leaf: jax.Array) -> Any:
    """Returns this process's rows of an array that is split in its second dimension."""
    shards = sorted(leaf.addressable_shards, key=lambda shard: shard.index[1].start or 0)
    groups = itertools.groupby(shards, key=lambda shard: shard.index[1].start or 0)
    return np.concatenate([np.asarray(next(copies).data) for _, copies in groups], axis=1)
