"""A planned pipeline on devices, as `Compiled` is a step that spreads every array over the mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from .compiled import Unplanned, donated_inputs, settings, value_type
from .mesh import Mesh
from .pipelines.execution.run import PipelineRun
from .plan import Plan


class CompiledPipeline:
    """A planned pipeline bound to devices.

    Attributes:
      plan: its plan.
      jax_mesh: the devices in the plan's order.
      in_tree, out_tree: pytree definitions of the arguments, as one tuple, and of the result.
      in_shardings: jax shardings of the flat inputs; state of a stage lies on its devices alone.
      out_shardings: the same for the flat outputs.
      donated: positions of the flat inputs that are given away.
      types: the types of leaves that it was called with; none is a tracer's.
      packing: packs and unpacks the state, which a loop of steps keeps packed.
      step: `(packed state, other flat inputs) -> (packed state, other flat outputs)`, for programs
        that jax compiles.
    """

    def __init__(self, plan: Plan, mesh: Mesh):
        assert plan.pipeline is not None
        self.plan = plan
        self.jax_mesh = mesh.jax_mesh()
        signature = plan.graph.program.signature
        assert signature is not None
        self.donated = frozenset(donated_inputs(signature, plan.donated))
        self.in_tree: Any = jax.tree_util.treedef_tuple(signature.in_trees)
        self.out_tree = signature.out_tree
        self._run = PipelineRun(plan.pipeline, mesh, self.donated)
        self.in_shardings, self.out_shardings = self._run.in_shardings, self._run.out_shardings
        self.packing, self.step = self._run.packing, self._run.step
        self._planned = settings(), [value_type(v) for v in plan.graph.program.inputs]
        self.types: set[type] = set()

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """Runs the step on flat inputs.

        Raises:
          Unplanned: their shapes, or jax's settings, are not those of the plan.
        """
        if (settings(), [value_type(jax.typeof(leaf)) for leaf in leaves]) != self._planned:
            raise Unplanned
        return jax.tree_util.tree_unflatten(self.out_tree, self._run(leaves))

    def lower(self) -> Any:
        """jax's lowered form of the program of all devices, to compile or to read."""
        return self._run.lower()
