"""`troupe check AGENT --env ID`"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence

from ....launch.errors import RunError
from ...tuned import Tuned
from .. import asking
from ..parser import Commands, add_data, add_partition, add_task


def register(commands: Commands) -> None:
    parser = commands.add("check", "trace and try an agent in seconds, before it is trained", check)
    add_task(parser)
    add_data(parser)
    add_partition(parser)


def check(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    tuned = asking.tuned_for(options, settings)
    recipe = asking.recipe(options, tuned, **asking.partition(options))
    if recipe.data is not None:  # Of gradient steps then, one dispatch; none is spent here.
        recipe = dataclasses.replace(recipe, steps=recipe.builder().steps_per_dispatch)
    experiment = recipe.experiment()
    from ....agents.programs import runtime
    from ....launch.conformance import table

    runtime.configure_cpu()
    began, failed, count = time.perf_counter(), 0, 0
    width = max(len(row.name) for row in table.TABLE)
    print(f"{recipe.agent} on {recipe.env}")
    for finding in table.check(experiment):
        status = "FAILED" if finding.status == "failed" else finding.status
        print(f"  {finding.name:<{width}}  {status:<8}  {finding.text}", flush=True)
        failed += finding.status == "failed"
        count += finding.status == "ok"
    seconds = time.perf_counter() - began
    if failed:
        raise RunError(f"{failed} of the checks failed, after {seconds:.1f} s.")
    print(f"{count} checks passed in {seconds:.1f} s")
    return 0
