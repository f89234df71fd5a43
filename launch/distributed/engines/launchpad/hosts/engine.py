"""A run over several hosts, begun in the same way on each."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from .....errors import RequestError
from .....experiment import Experiment
from .....files.result import Result, versions
from .....logging import report
from .....specification.begun import begun
from .... import hosts as all_hosts
from ....deployment import Roles
from ....run import conduct
from ..program import LaunchProgram, make_program
from .core import CoreEngine
from .guest import take_part


def run(
    experiment: Experiment,
    out: str | os.PathLike[str],
    roles: Roles,
    *,
    resume: bool = False,
    progress: bool = True,
    reporter: report.Reporter | None = None,
    request: Mapping[str, Any] | None = None,
) -> Result | None:
    """Runs an experiment over `roles.hosts`, of which this is one.

    Args, Raises: as `deploy` and `conduct`; RequestError too where this host or another is not as
      it must be.

    Returns:
      What `conduct` returns, on the first host; None on the others.
    """
    hosts = all_hosts.find(roles.host_names)
    asked = request or begun(experiment, "processes", roles.given()).to_json()
    facts = json.loads(json.dumps({"versions": versions(), "asked": asked}, default=str))
    resume, warn = resume and hosts.is_core, (reporter or report.Reporter()).line
    program = make_program(experiment, out, resume=resume, warn=warn, **roles.given())
    _require_work(program, hosts)
    if hosts.is_core:
        engine = CoreEngine(program, hosts, facts)
        return conduct(program.deployment, engine, reporter, request, progress)
    teller = reporter or (report.for_stream() if progress else report.Reporter())
    try:
        take_part(program, hosts, facts, teller.line)
    finally:
        if reporter is None:
            teller.close()
    return None


def _require_work(program: LaunchProgram, hosts: all_hosts.Hosts) -> None:
    """Raises RequestError where a host would have no role."""
    used = {
        all_hosts.place(label, index, len(hosts.names))
        for label, nodes in program.groups.items()
        for index in range(len(nodes))
    }
    idle = [name for index, name in enumerate(hosts.names) if index not in used]
    if idle:
        raise RequestError(
            f"of the hosts {', '.join(hosts.names)} there is no role for {', '.join(idle)}; ask "
            "for more --actors, or name fewer hosts."
        )
