"""The public entry: a step, a mesh and a schedule give a step that runs on the mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .compiled import Compiled, Unplanned, settings
from .compiled_pipeline import CompiledPipeline
from .decide.actions import Tactic, axes_of
from .decide.graph import Graph
from .decisions import PlanDecisions
from .ir.garbage import no_garbage_collection
from .ir.trace import argument_names, trace
from .mesh import Mesh
from .options import PlanOptions
from .plan import Plan
from .record import graph_of

_NO_MESH = jax.sharding.Mesh(np.empty((), object), ())


def partition(
    fn: Callable[..., Any],
    mesh: Mesh,
    schedule: Sequence[Tactic],
    options: PlanOptions | None = None,
    *,
    decisions: PlanDecisions | None = None,
    **fields: Any,
) -> Partitioned:
    """Partitions a step over a mesh.

    Args:
      fn: the step, written for one device and the global batch: positional pytrees of arrays in, a
        pytree out. An argument that comes out again with the same structure and shapes is taken to
        be state, and keeps its sharding from call to call.
      mesh: the mesh; real devices are looked up only when the step is called.
      schedule: tactics in order. Earlier ones win.
      options: the other options of the plan; all have defaults.
      decisions: `plan.decisions` of an earlier plan of the same step, mesh and schedule, which is
        made again without a search; its options hold.
      **fields: of :class:`PlanOptions`, those given one by one: `donate=("state",)`.

    Returns:
      A callable step with `plan`, `lower_text` and `compile`, and with jax's `lower` and
      `eval_shape`.

    Raises:
      ValueError: an unknown placement or way of reductions, a tactic on an axis that the mesh
        lacks, or a topology that does not hold the mesh.
      TypeError: something in the schedule that is not a tactic, or an unknown option.
    """
    known = [field.name for field in dataclasses.fields(PlanOptions)]
    for name in fields:
        if name not in known:
            raise TypeError(f"partition has no option {name!r}; there are {', '.join(known)}")
    options = dataclasses.replace(options or PlanOptions(), **fields)
    if not isinstance(mesh, Mesh):
        raise TypeError(
            f"mesh must be a pt.Mesh, not {type(mesh).__name__}; write pt.Mesh({{'data': 8}})"
        )
    if callable(getattr(schedule, "actions", None)):
        raise TypeError(
            f"schedule is the tactic {schedule.name!r} alone; put it in a list: "  # type: ignore[attr-defined]
            "pt.partition(step, mesh, [tactic])"
        )
    if isinstance(schedule, str):
        raise TypeError(f"schedule is text; write pt.parse_schedule({schedule!r})")
    for tactic in schedule:
        if not callable(getattr(tactic, "actions", None)) or not hasattr(tactic, "axis"):
            raise TypeError(
                f"schedule holds {tactic!r}, which is no tactic; use pt.Manual, pt.tactics, or "
                "an object with name, axis and actions(context)"
            )
        for axis in axes_of(tactic):
            mesh.check_axis(axis, f"tactic {tactic.name!r}")
    if options.simulate is not None and options.simulate.topology is not None:
        options.simulate.place(mesh.axes)
    return Partitioned(fn, mesh, tuple(schedule), options, decisions)


class Partitioned:
    """A step that runs on a mesh; made by :func:`partition`."""

    def __init__(
        self,
        fn: Callable[..., Any],
        mesh: Mesh,
        schedule: tuple[Tactic, ...],
        options: PlanOptions,
        decisions: PlanDecisions | None = None,
    ):
        self.fn = fn
        self.mesh = mesh
        self.schedule = schedule
        self.options = options
        self.decisions = decisions
        self._graphs: dict[Any, Graph] = {}
        self._plans: dict[Any, Plan] = {}
        self._runs: dict[Any, Compiled | CompiledPipeline] = {}
        self._last: Plan | None = None
        self._latest: Compiled | CompiledPipeline | None = None
        self._alternates = False

    def with_schedule(self, mesh: Mesh, schedule: Sequence[Tactic]) -> Partitioned:
        """The same step on another mesh and under another schedule, traced once for all of them.

        Raises:
          ValueError, TypeError: as of `partition`.
        """
        return self._beside(partition(self.fn, mesh, schedule, self.options))

    def giving_state(self, *args: Any) -> Partitioned:
        """The same step that gives away the arguments which come out again, updated; traced once.

        Args:
          *args: of these shapes; arrays or `jax.ShapeDtypeStruct`.

        Raises:
          TypeError: as of `plan`.
        """
        graph = self._graph(*jax.tree_util.tree_flatten(args)[::-1])
        signature, state = graph.program.signature, graph.updated.keys()
        assert signature is not None
        found, start = [], 0
        for name, end in zip(signature.names, signature.ends, strict=True):
            if not state.isdisjoint(graph.program.inputs[start:end]):
                found.append(name)
            start = end
        options = dataclasses.replace(self.options, donate=tuple(found))
        return self._beside(partition(self.fn, self.mesh, self.schedule, options))

    def _beside(self, other: Partitioned) -> Partitioned:
        """Another of the same step, which reads what is traced of this one."""
        other._graphs = self._graphs
        return other

    def plan(self, *args: Any, **keywords: Any) -> Plan:
        """The plan for arguments of these shapes; arrays or `jax.ShapeDtypeStruct`. Touches no
        device.

        Raises:
          ValueError: a name in `donate` or `weights` that is no argument, or what a tactic cannot
            do.
          TypeError: an argument that holds no array, or sizes that are symbols.
        """
        leaves, tree = jax.tree_util.tree_flatten(self._positional(args, keywords))
        return self._plan(tree, leaves)

    def _positional(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
        """Arguments in order, those given by name too."""
        if not keywords:
            return args
        names = argument_names(self.fn, len(args) + len(keywords))
        if set(names[len(args) :]) != set(keywords):
            raise TypeError(
                f"the step takes the positional arguments {list(names)}; it got {len(args)} by "
                f"position and {sorted(keywords)} by name. Name those that are left, or bind "
                "others with functools.partial before pt.partition"
            )
        return (*args, *(keywords[name] for name in names[len(args) :]))

    @no_garbage_collection()
    def _graph(self, tree: Any, leaves: list[Any]) -> Graph:
        """The graph of the step for arguments of these shapes, traced once."""
        structs = [abstract(leaf) for leaf in leaves]
        key = settings(), tree, tuple(_key(s) for s in structs)
        graph = self._graphs.get(key)
        if graph is None:
            program = trace(self.fn, *jax.tree_util.tree_unflatten(tree, structs))
            graph = self._graphs[key] = graph_of(program, self.options)
        return graph

    @no_garbage_collection()
    def _plan(self, tree: Any, leaves: list[Any]) -> Plan:
        key = settings(), tree, tuple(_key(abstract(leaf)) for leaf in leaves)
        plan = self._plans.get(key)
        if plan is None:
            names = argument_names(self.fn, len(tree.children()))
            for field in ("donate", "weights"):
                for name in getattr(self.options, field):
                    if name not in names:
                        raise ValueError(
                            f"{field} names {name!r}, which is no argument; the arguments are "
                            f"{list(names)}"
                        )
            plan = Plan(
                self._graph(tree, leaves), self.mesh, self.schedule, self.options, self.decisions
            )
            self._plans[key] = plan
        self._last = plan
        return plan

    def lower_text(self, *args: Any, **keywords: Any) -> str:
        """The local program as text; of the last plan where no arguments are given.

        Raises:
          ValueError: where nothing was planned yet and no arguments are given.
        """
        args = self._positional(args, keywords)
        if not args and self._last is None:
            raise ValueError(
                "nothing is planned yet: give arguments (arrays or jax.ShapeDtypeStruct) to "
                "lower_text"
            )
        plan = self.plan(*args) if args else self._last
        assert plan is not None
        return str(plan.program)

    def compile(self, *args: Any, **keywords: Any) -> Compiled | CompiledPipeline:
        """Returns the run for arguments of these shapes; it is compiled on its first call."""
        leaves, tree = jax.tree_util.tree_flatten(self._positional(args, keywords))
        return self._compiled(tree, leaves)

    def lower(self, *args: Any, **keywords: Any) -> Any:
        """Lowers the step for arguments of these shapes, as `jax.jit(fn).lower` does."""
        return self.compile(*args, **keywords).lower()

    def eval_shape(self, *args: Any, **keywords: Any) -> Any:
        """Returns the result's shapes and dtypes as `jax.ShapeDtypeStruct`s; plans nothing."""
        return jax.eval_shape(self.fn, *self._positional(args, keywords))

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out plans and compiled programs, which are made again where it is unpickled."""
        made: dict[str, Any] = {"_graphs": {}, "_plans": {}, "_runs": {}}
        return {**self.__dict__, **made, "_last": None, "_latest": None}

    def _compiled(self, tree: Any, leaves: list[Any]) -> Compiled | CompiledPipeline:
        key = settings(), tree, tuple([_leaf_key(leaf) for leaf in leaves])
        found = self._runs.get(key)
        if found is None:
            plan = self._plan(tree, leaves)
            made = Compiled if plan.pipeline is None else CompiledPipeline
            found = self._runs[key] = made(plan, self.mesh)
        return found

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Runs the step. Arguments that are not placed yet are placed; the result stays on the
        mesh.

        Raises:
          TypeError: within a transformation of jax's, such as `jax.jit` or `jax.grad`.
        """
        if keywords:
            args = self._positional(args, keywords)
        if not jax.sharding.get_abstract_mesh().empty and hasattr(jax.sharding, "set_mesh"):
            self.plan(
                *args
            )  # Traced within the caller's mesh: hints of the step may name its axes.
            with jax.set_mesh(_NO_MESH):  # What runs has a mesh of its own.
                return self(*args)
        leaves, tree = jax.tree_util.tree_flatten(args)
        run, missed = self._latest, False
        if run is not None and run.in_tree == tree and run.types.issuperset(map(type, leaves)):
            try:
                return run(leaves)
            except Unplanned:  # Other shapes or settings than it was planned for, as jax found.
                missed = True
        count = len(self._runs)
        run = self._compiled(tree, leaves)
        run.types.update(map(type, leaves))
        # Who calls with several shapes in turn is better served by looking up than by missing.
        self._alternates |= missed and len(self._runs) == count
        self._latest = None if self._alternates else run
        return run(leaves)


def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape, dtype and weak type of an array, a Python scalar, or what already is one."""
    if isinstance(leaf, jax.core.Tracer):
        raise TypeError(
            "the step was called within a transformation of jax's (jit, grad, vmap, eval_shape), "
            "but it is a compiled program of the whole mesh: call it as it is, transform the "
            "function before it is partitioned, as in pt.partition(jax.grad(fn), mesh, schedule), "
            "and use step.plan(...) for shapes"
        )
    if any(not isinstance(n, (int, np.integer)) for n in getattr(leaf, "shape", ())):
        raise TypeError(
            f"an argument has the symbolic shape {tuple(map(str, leaf.shape))}, of which no part "
            "can be told for a device; plan once for each size, with integers"
        )
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    aval = getattr(leaf, "aval", None)
    if aval is not None:
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
    if isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic):
        dtype = jax.dtypes.canonicalize_dtype(np.result_type(leaf))
        return jax.ShapeDtypeStruct((), dtype, weak_type=not isinstance(leaf, bool))
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise TypeError(
            f"an argument holds {leaf!r} of type {type(leaf).__name__}, which is no array"
        )
    return jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))


def _key(struct: Any) -> tuple[Any, ...]:
    return struct.shape, struct.dtype, bool(getattr(struct, "weak_type", False))


def _leaf_key(leaf: Any) -> Any:
    # Not the aval itself: it knows where the array lies, and a result of the step that becomes its
    # argument must not be planned and compiled for again.
    if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
        return _key(leaf.aval)
    return _key(abstract(leaf))
