"""A planned step on devices: one jitted function, and the little that has to come before it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from .ir.execute import Coordinates, evaluate, spec_of
from .ir.program import Program, Signature
from .mesh import Mesh
from .plan import Plan
from .rules import traits_of


class Unplanned(Exception):
    """A run was called with shapes, or under settings, that its plan is not for."""


class Compiled:
    """A planned step bound to devices.

    A call costs what jax's own costs: shapes and dtypes are compared only where jax traces, and
    arrays are placed here only where jax would not place them, or where it would give away memory
    that something else lies in.

    Attributes:
      plan: its plan.
      jax_mesh: the devices in the plan's order.
      in_tree, out_tree: pytree definitions of the arguments, as one tuple, and of the result.
      in_shardings: jax shardings of the flat inputs.
      out_shardings: the same for the flat outputs.
      donated: positions of the flat inputs that are given away.
      jitted: the jitted function of flat inputs.
      types: the types of leaves that it was called with; none is a tracer's.
    """

    def __init__(self, plan: Plan, mesh: Mesh):
        self.plan = plan
        mesh = mesh if plan.order is None else mesh.ordered(plan.order)
        self.jax_mesh = mesh.jax_mesh()
        program = plan.whole
        signature = program.signature
        assert signature is not None
        donate = donated_inputs(signature, plan.donated)
        self.donated = frozenset(donate)
        self.in_tree: Any = jax.tree_util.treedef_tuple(signature.in_trees)
        self.out_tree = signature.out_tree
        self.in_shardings, self.out_shardings = (
            tuple(_sharding(self.jax_mesh, spec_of(v.layout or ())) for v in values)
            for values in (program.inputs, program.outputs)
        )
        jit = functools.partial(
            jax.jit,
            in_shardings=self.in_shardings,
            out_shardings=self.out_shardings,
            donate_argnums=donate,
        )
        run = explicit(plan.program, mesh.in_parts(plan.parts), plan.options.bundle)
        types = [value_type(v) for v in plan.graph.program.inputs]
        planned_under = settings()

        def checked(*args: Any) -> tuple[Any, ...]:
            # Runs where jax traces, which is where its own cache knows no such call.
            if [value_type(jax.typeof(a)) for a in args] != types or settings() != planned_under:
                raise Unplanned
            return run(*args)

        self.jitted = jit(run)
        self._checked = jit(checked)
        self.types: set[type] = set()
        # Where a typed key lies takes longer to tell than all else; nothing shares its memory.
        extended = [jax.dtypes.issubdtype(v.dtype, jax.dtypes.extended) for v in program.inputs]
        self._watched = tuple(i for i in donate if not extended[i])
        self._left = [self.in_shardings[i] for i in self._watched]
        self._alone = self.jax_mesh.size == 1
        self._called = self._refused = False

    def place(self, leaves: Sequence[Any]) -> list[Any]:
        """The flat inputs on the devices; those already there stay, unless they are given away and
        lie in memory that another one lies in too.
        """
        placed = list(leaves)
        moved = [
            i
            for i, (leaf, wanted) in enumerate(zip(leaves, self.in_shardings, strict=True))
            if not (
                isinstance(leaf, jax.Array) and (leaf.sharding is wanted or leaf.sharding == wanted)
            )
        ]
        if moved:
            arrays = jax.device_put(
                [leaves[i] for i in moved], [self.in_shardings[i] for i in moved]
            )
            for i, array in zip(moved, arrays, strict=True):
                placed[i] = array
        afresh = not self._called or not self.donated.isdisjoint(moved)
        if self.donated and (afresh or self._repeated(leaves)):
            self._part(placed)
        return placed

    def _repeated(self, leaves: Sequence[Any]) -> bool:
        """True if an array that is donated comes in a second time."""
        if len(set(map(id, leaves))) == len(leaves):
            return False
        given = [id(leaves[i]) for i in self.donated]
        kept = {id(leaf) for i, leaf in enumerate(leaves) if i not in self.donated}
        return len(set(given)) < len(given) or not kept.isdisjoint(given)

    def _part(self, placed: list[Any]) -> None:
        """Copies donated arrays that share their memory with another argument.

        A state with its parameters as target network too holds each buffer twice, and a buffer can
        be donated only once. Arrays just placed may share memory although they differ as objects.
        """
        taken: set[Any] = set()
        # What is kept comes first, so that it is the donated array that is copied.
        for i in sorted(range(len(placed)), key=self.donated.__contains__):
            memory = _memory(placed[i])
            if i in self.donated and not taken.isdisjoint(memory):
                placed[i] = jax.device_put(placed[i], self.in_shardings[i], may_alias=False)
                memory = _memory(placed[i])
            taken |= memory

    def _ready(self, leaves: Sequence[Any]) -> bool:
        """True if the leaves can go to jax as they are.

        jax must not have refused such leaves before. Donated leaves must lie where the step leaves
        them, and come in once; a single device refuses repeated ones itself.
        """
        if self._refused or not self.donated:
            return not self._refused
        there = [getattr(leaves[i], "sharding", None) for i in self._watched]
        if not self._called or there != self._left:
            return False
        # One device refuses what comes in twice; of several, some may have begun by then.
        return self._alone or not self._repeated(leaves)

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """Runs the step on flat inputs.

        Raises:
          Unplanned: their shapes, or jax's settings, are not those of the plan.
        """
        placed = leaves if self._ready(leaves) else self.place(leaves)
        try:
            results = self._checked(*placed)
        except (ValueError, KeyError):
            if placed is not leaves:
                raise
            # Nothing was given away yet: jax refuses what is committed to other devices, arrays on
            # explicit axes of another mesh, and one that is to be given away and comes in twice.
            placed = self.place(leaves)
            if all(a is b for a, b in zip(placed, leaves, strict=True)):
                raise
            self._refused = not self._repeated(leaves)
            results = self._checked(*placed)
        self._called = True
        return jax.tree_util.tree_unflatten(self.out_tree, results)

    def lower(self) -> Any:
        """jax's lowered form of the step, to compile or to read."""
        program = self.plan.graph.program
        structs = [
            jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=s, weak_type=v.weak_type)
            for v, s in zip(program.inputs, self.in_shardings, strict=True)
        ]
        return self.jitted.lower(*structs)


@functools.lru_cache(maxsize=4096)
def _sharding(mesh: jax.sharding.Mesh, spec: jax.sharding.PartitionSpec) -> NamedSharding:
    """Equal shardings are one object, as results have those of any equal step: quickly compared."""
    return NamedSharding(mesh, spec)


def explicit(program: Program, mesh: Mesh, bundle: bool = False) -> Callable[..., Any]:
    """The local program under `shard_map`; the mesh has the axes that the program names."""
    jax_mesh = mesh.jax_mesh()
    in_specs = tuple(spec_of(v.layout or ()) for v in program.inputs)
    out_specs = tuple(spec_of(v.layout or ()) for v in program.outputs)

    def local(*args: Any) -> tuple[Any, ...]:
        return tuple(evaluate(program, args, mesh.axes, bundle=bundle))

    if not any(traits_of(op.name).host for op in program.walk()):
        return shard_map(local, jax_mesh, in_specs, out_specs)

    def placed(ranks: dict[str, Any], *args: Any) -> tuple[Any, ...]:
        here = Coordinates(mesh.axes, {axis: rank[0] for axis, rank in ranks.items()})
        return tuple(evaluate(program, args, here, bundle=bundle))

    specs = {axis: jax.sharding.PartitionSpec(axis) for axis in mesh.axes}
    mapped = shard_map(placed, jax_mesh, (specs, *in_specs), out_specs)
    ranks = {axis: np.arange(size, dtype=np.int32) for axis, size in mesh.axes.items()}
    return functools.partial(mapped, ranks)


def shard_map(
    fn: Callable[..., Any], mesh: Any, in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    """jax's `shard_map` without its check of replication, which knows nothing of what we know."""
    return jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def settings() -> tuple[Any, ...]:
    """The settings of jax on which a traced step depends."""
    config: Any = jax.config
    return (
        config.jax_threefry_partitionable, config.jax_enable_x64, config.jax_default_prng_impl,
        config.jax_default_matmul_precision, config.jax_numpy_dtype_promotion,
    )  # fmt: skip


def donated_inputs(signature: Signature, donated: Collection[str]) -> tuple[int, ...]:
    """Returns the positions of the flat inputs of arguments that are given away by name."""
    ends = (0, *signature.ends)
    return tuple(
        i
        for k, name in enumerate(signature.names)
        if name in donated
        for i in range(ends[k], ends[k + 1])
    )


def value_type(value: Any) -> tuple[Any, ...]:
    """Shape, dtype and weak type of a program's value or of an abstract one of jax's."""
    weak = bool(getattr(value, "weak_type", False)) and value.dtype != bool
    return value.shape, value.dtype, weak


def _memory(array: jax.Array) -> set[tuple[Any, int]]:
    """The places where an array lies: (device, address) of each part that this process holds."""
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    parts = [shard.data for shard in array.addressable_shards]
    return {(part.device, part.unsafe_buffer_pointer()) for part in parts if part.size}
