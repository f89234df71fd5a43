"""Ray as the engine of a deployment."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from ....experiment import Experiment
from ....files.result import Result
from ....logging import report
from ....roles import RAY
from ...deploy import deploy
from ...deployment import Deployment, Say
from ...run import conduct
from . import cluster as clusters
from . import launcher
from .incarnations import Incarnations


class RayEngine:
    """Runs the roles of a deployment in a cluster."""

    name = RAY

    def __init__(self, deployment: Deployment, cluster: clusters.Cluster, kind: str = "ray"):
        self._deployment, self._cluster, self.kind = deployment, cluster, kind

    @contextlib.contextmanager
    def start(
        self, workspace: pathlib.Path, logs: pathlib.Path, say: Say
    ) -> Iterator[Incarnations]:
        """See `run.Engine`."""
        incarnations = Incarnations(
            self._deployment, self._cluster, workspace.resolve(), logs.resolve(), say
        )
        try:
            yield incarnations
        finally:
            incarnations.stop()


def run(
    experiment: Experiment,
    out: str | os.PathLike[str],
    roles: Mapping[str, Any] | None = None,
    *,
    kind: str = "ray",
    resume: bool = False,
    progress: bool = True,
    reporter: report.Reporter | None = None,
    request: Mapping[str, Any] | None = None,
) -> Result:
    """Runs an experiment in a cluster: that of `roles["address"]`, or one of its own here.

    Args: as `deploy` and `conduct`; and the kind of launch that is written down.

    Returns, Raises: as `conduct`; RequestError too where no cluster answers at the address, or it
      has not what the roles need.
    """
    warn = (reporter or report.Reporter()).line
    deployment = deploy(experiment, out, resume=resume, warn=warn, **(roles or {}))
    given, bundles = deployment.roles, functools.partial(launcher.bundles, deployment)
    connected = clusters.connected(given.address, bundles, given.actor_cpus, deployment.directory)
    with connected as cluster:
        if given.actor_cpus is None and cluster.actor_cpus < 1.0:
            warn(f"actors take {cluster.actor_cpus:g} CPU each, as there is no room for more")
        engine = RayEngine(deployment, cluster, kind)
        return conduct(deployment, engine, reporter, request, progress)
