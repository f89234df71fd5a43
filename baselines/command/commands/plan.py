"""`troupe plan AGENT --env ID --mesh AXES --schedule TACTICS`, or `--devices N` instead"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from ....launch.errors import RequestError
from ...tuned import Tuned
from .. import asking
from ..parser import Commands, add_partition, add_sampler, add_task


def register(commands: Commands) -> None:
    parser = commands.add(
        "plan", "say what a mesh and a schedule make of an agent's step, and what it costs", plan
    )
    add_task(parser)
    add_partition(parser)
    add_sampler(parser)
    parser.add_argument(
        "--devices",
        type=int,
        metavar="N",
        help="with neither mesh nor schedule: choose both for so many devices",
    )
    parser.add_argument("--save", metavar="FILE", help="draw memory, time and tactics")
    parser.add_argument(
        "--save-plan", metavar="FILE", help="write the plan, for `troupe train --plan FILE`"
    )
    parser.add_argument("--save-search", metavar="FILE", help="draw what an auto:AXIS tried")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def plan(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    tuned = asking.tuned_for(options, settings)
    asked = options.mesh is not None or options.schedule is not None
    if asked == (options.devices is not None):
        raise RequestError(
            "give --mesh and --schedule, to plan with them, or --devices N, to have both chosen; "
            + ("not both ways at once." if asked else "nothing was given of either.")
        )
    if not asked and asking.sampler(options):
        raise RequestError(
            "--sampler-mesh was given with --devices, which chooses the learner's mesh alone; give "
            "--mesh and --schedule."
        )
    from ....launch import planning
    from ....launch.experiment import Partition
    from ....launch.specification import stored
    from ....partitioning import parse_spread, printing
    from ....partitioning.simulator import pictures
    from ....partitioning.tactics.search import search_drawing

    if asked:
        words = asking.partition(options)
        experiment = asking.recipe(options, tuned, **words, **asking.sampler(options)).experiment()
        made = planning.plan(experiment)
        sampler = None
        if experiment.sampler_partition is not None:
            sampler = planning.plan_sampler(experiment, made)
        if options.json:
            more = {} if sampler is None else {"sampler": sampler.to_json()}
            print(json.dumps({**json.loads(made.to_json()), **more}, indent=2))
        else:
            print(printing.report(made), *([] if sampler is None else [sampler]), sep="\n")
    else:
        memory = options.memory
        _, again = parse_spread("auto:data", options.recompute, memory)
        experiment = asking.recipe(options, tuned).experiment()
        asked_for = Partition(None, (), again, options.placement, options.device)
        found = planning.choose(experiment, options.devices, asked_for, memory)
        made = found.plan
        best = {"mesh": found.best.mesh, "schedule": found.best.schedule}
        words = {**asking.partition(options), **best}
        if options.json:
            print(json.dumps({**json.loads(made.to_json()), "choice": found.to_json()}, indent=2))
        else:
            print(f"{printing.report(made)}\n{found}")
    if options.save_plan is not None:
        stored.save_plan(options.save_plan, words, made)
    if options.save is not None:
        pictures.save_plan(made, options.save)
    if options.save_search is not None:
        log = next((step.log for step in made.steps if step.log is not None), None)
        if log is None:
            raise RequestError(
                f"--save-search {options.save_search}: no tactic of the plan searched; put an "
                "auto:AXIS into the schedule."
            )
        search_drawing.save_search(log, options.save_search)
    return 0
