"""`troupe plan AGENT --env ID --mesh AXES --schedule TACTICS`"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ...tuned import Tuned
from .. import asking
from ..parser import Commands, add_partition, add_task


def register(commands: Commands) -> None:
    parser = commands.add(
        "plan", "say what a mesh and a schedule make of an agent's step, and what it costs", plan
    )
    add_task(parser)
    add_partition(parser, required=True)
    parser.add_argument(
        "--device", default="h200", help="a device of `troupe list`, or a calibration's file"
    )
    parser.add_argument("--save", metavar="FILE", help="draw memory, time and tactics")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def plan(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    tuned = asking.tuned_for(options, settings)
    recipe = asking.recipe(options, tuned, **asking.partition(options))
    from ....launch.request import planning
    from ....partitioning import printing
    from ....partitioning.simulator import pictures

    made = planning.plan(recipe.experiment(), options.device)
    print(made.to_json() if options.json else printing.report(made))
    if options.save is not None:
        pictures.save_plan(made, options.save)
    return 0
