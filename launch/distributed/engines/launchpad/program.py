"""The Launchpad program of a deployment."""

from __future__ import annotations

import os
from typing import Any

import launchpad as lp
import tree
from launchpad.nodes.dereference import Deferred

from ....experiment import Experiment
from ...deploy import deploy
from ...deployment import Deployment, Reference, RolePlan, Say
from .courier_board import CourierBoard
from .program_nodes import ReplayNode, ServiceNode, WorkerNode
from .reverb_service import ReverbService


class LaunchProgram(lp.Program):
    """A Launchpad program that knows its deployment.

    Attributes:
      deployment: what it was made from.
      handles: of the nodes, by label.
    """

    def __init__(self, deployment: Deployment):
        """A node for every role."""
        super().__init__(deployment.experiment.builder.name)
        self.deployment = deployment
        self.handles: dict[str, list[Any]] = {}
        for plan in deployment.plans:
            handle = self.add_node(self._node(plan), label=plan.label)
            self.handles.setdefault(plan.label, []).append(handle)

    def _node(self, plan: RolePlan) -> lp.PyClassNode:
        if plan.serves_replay:
            arguments = {name: one for name, one in plan.arguments.items() if name != "service"}
            return ReplayNode(plan.settings, plan.constructor, **self._resolved(arguments))
        arguments = self._resolved(plan.arguments)
        if plan.threads:
            return ServiceNode(
                plan.label, plan.settings, plan.constructor, threads=plan.threads, **arguments
            )
        return WorkerNode(plan.settings, plan.constructor, **arguments)

    def _resolved(self, arguments: Any) -> dict[str, Any]:
        """Arguments with handles, and what is made of them, in place of references."""

        def resolve(leaf: Any) -> Any:
            if not isinstance(leaf, Reference):
                return leaf
            handle = self.handles[leaf.label][leaf.index]
            made = {"calls": None, "board": CourierBoard, "replay": ReverbService}[leaf.proxy]
            return handle if made is None else Deferred(made, handle)

        return tree.map_structure(resolve, dict(arguments))


def make_program(
    experiment: Experiment,
    directory: str | os.PathLike[str],
    *,
    resume: bool = False,
    warn: Say = lambda line: None,
    **roles: Any,
) -> LaunchProgram:
    """The program of an experiment, whose nodes go to processes through cloudpickle.

    Args, Raises: as `deploy`.
    """
    return LaunchProgram(deploy(experiment, directory, resume=resume, warn=warn, **roles))
