"""The incarnations of a run: its core has one node after another, as they are lost."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray import exceptions

from ....errors import RunError
from ....files.checkpoints import Store
from ....files.directory import RunDirectory
from ...deployment import Deployment, Say
from ...supervision.supervisor import Supervisor
from . import cluster_nodes, host, launcher
from .actor_client import RayRemote
from .cluster import Cluster
from .launcher import NodeLost, Seat

_NODE_SECONDS = 60.0
"""Seconds for which a node is looked for that takes the core of a run."""
_REMOVE_SECONDS = 5.0


class Incarnations:
    """The roles of a deployment (`run.Running`).

    Counter, variables, replay, evaluators and the first process of the learner share one node, the
    core's. Where that is lost all roles are ended, and started again from the newest checkpoint
    with the core on another node, as the next incarnation of the run. What an earlier incarnation
    still holds is
    refused: its calls, and its checkpoints.
    """

    def __init__(
        self,
        deployment: Deployment,
        cluster: Cluster,
        workspace: pathlib.Path,
        logs: pathlib.Path,
        say: Say,
    ):
        """Starts the first.

        Args:
          deployment: of the run.
          cluster: where.
          workspace: an empty folder of this machine.
          logs: folder of the roles' log files.
          say: told what happens, a line at a time.

        Raises:
          RunError: if no node takes the core.
        """
        self._deployment, self._cluster = deployment, cluster
        self._workspace, self._logs, self._say = workspace, logs, say
        folder = RunDirectory(deployment.directory).checkpoints
        self._store = Store(folder, address=deployment.experiment.checkpointing.copies)
        self._went_back: Mapping[str, Any] | None = None
        self._lost_at: float | None = None
        self._begin(deployment)

    @property
    def counter(self) -> RayRemote:
        return RayRemote(self._cluster.run, self._core.incarnation, "counter")

    def poll(self) -> None:
        try:
            if self._lost_at is None:
                self._supervisor.poll()
            else:
                self._go_on()
        except NodeLost:
            self._end()
            self._lost_at = time.monotonic()
            self._say(
                f"the node of the {self._names()} is lost; the run goes on elsewhere from its "
                "newest checkpoint"
            )

    def starting(self) -> list[str]:
        return self._supervisor.starting()

    def went_back(self) -> Mapping[str, Any] | None:
        counters, self._went_back = self._went_back, None
        return counters

    def stop(self) -> None:
        """Ends all roles."""
        if self._lost_at is None:
            self._supervisor.stop()
            self._release()

    def _names(self) -> str:
        labels = [label for label in self._deployment.groups() if label not in launcher.ANYWHERE]
        return f"{', '.join(labels[:-1])} and {labels[-1]}"

    def _go_on(self) -> None:
        """Starts the next incarnation, where a node takes it."""
        assert self._lost_at is not None
        checkpoint = self._store.newest(self._say, needs=("learner",))
        deployment = self._deployment
        if checkpoint is not None:
            deployment = deployment.going_on(checkpoint.counters)
        try:
            self._begin(deployment)
        except RunError as error:
            if time.monotonic() - self._lost_at > _NODE_SECONDS:
                raise RunError(
                    f"the node of the {self._names()} is lost, and within {_NODE_SECONDS:g} s no "
                    f"other has room for them; go on with `troupe resume "
                    f"{self._deployment.directory}` where one has."
                ) from error
            return
        self._lost_at = None
        self._went_back = checkpoint.counters if checkpoint is not None else {}

    def _begin(self, deployment: Deployment) -> None:
        ranks = deployment.groups()["learner"]
        bundles = [launcher.bundle(plan, deployment, 0.0) for plan in ranks]
        node, group = cluster_nodes.reserve(bundles, deployment.directory)
        self._core = Seat(self._store.begin_incarnation(), node, group)
        self._held = {node}
        workspace = self._workspace / f"incarnation-{self._core.incarnation}"
        workspace.mkdir()
        self._supervisor: Supervisor = launcher.start(
            deployment, self._cluster, self._core, workspace, self._logs, self._say
        )

    def _end(self) -> None:
        """Ends what is left of an incarnation whose node is lost."""
        with contextlib.suppress(NodeLost):
            self._supervisor.stop(patience=0.0)
        self._release()

    def _release(self) -> None:
        self._held |= cluster_nodes.of_group(self._core.group)
        ray.util.remove_placement_group(self._core.group)
        left = {node["NodeID"] for node in cluster_nodes.alive()} - {self._cluster.node}
        remove = ray.remote(num_cpus=0)(host.remove_workspaces)
        for node in self._held & left:
            there = remove.options(scheduling_strategy=cluster_nodes.affinity(node))
            with contextlib.suppress(exceptions.RayError):
                ray.get(there.remote(self._cluster.run), timeout=_REMOVE_SECONDS)
        shutil.rmtree(self._workspace / f"incarnation-{self._core.incarnation}", ignore_errors=True)
