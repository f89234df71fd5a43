"""Launching programs: Launchpad as the engine of a deployment."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from .....agents.bounds import show
from .... import devices
from ....errors import RequestError
from ....experiment import Experiment
from ....files.result import Result
from ....logging import report
from ....roles import LAUNCHPAD
from ...deployment import Say
from ...run import Supervised, conduct
from . import launcher, servers
from .program import LaunchProgram, make_program


class Launchpad:
    """Runs the roles of a program on this machine, as threads or processes."""

    name = LAUNCHPAD

    def __init__(self, program: LaunchProgram, kind: str):
        """Raises RequestError where the program cannot be launched so."""
        if not isinstance(program, LaunchProgram):
            raise RequestError(
                "launch takes the program of make_program(experiment, out), not "
                f"{show(program)}; an experiment in one process is run by launch.run."
            )
        launcher.check(program, kind)
        devices.require_accelerator(program.deployment.experiment.learner_device)
        self.kind, self._program = kind, program

    @contextlib.contextmanager
    def start(self, workspace: pathlib.Path, logs: pathlib.Path, say: Say) -> Iterator[Supervised]:
        """See `run.Engine`."""
        address = self._program.deployment.roles.listen
        with contextlib.ExitStack() as stack:
            started = launcher.start(self._program, self.kind, workspace, logs, say, address)
            stack.callback(started.stop)
            if self.kind == "threads":
                import reverb  # noqa: F401 - what serves must be there to be kept to an address.

                stack.enter_context(servers.kept_to(address))
            yield Supervised(self._program.handles["counter"][0].dereference(), started)


def launch(
    program: LaunchProgram,
    kind: str = "processes",
    *,
    progress: bool = True,
    reporter: report.Reporter | None = None,
    request: Mapping[str, Any] | None = None,
) -> Result:
    """Launches a program of `make_program` on this machine, as "threads" or "processes".

    Args, Returns, Raises: else as `conduct`, which waits for its end.
    """
    engine = Launchpad(program, kind)
    return conduct(program.deployment, engine, reporter, request, progress)


def run(
    experiment: Experiment,
    out: str | os.PathLike[str],
    kind: str = "processes",
    roles: Mapping[str, Any] | None = None,
    *,
    resume: bool = False,
    progress: bool = True,
    reporter: report.Reporter | None = None,
    request: Mapping[str, Any] | None = None,
) -> Result:
    """`make_program`, whose arguments these are, and `launch`."""
    warn = (reporter or report.Reporter()).line
    program = make_program(experiment, out, resume=resume, warn=warn, **(roles or {}))
    return launch(program, kind, progress=progress, reporter=reporter, request=request)
