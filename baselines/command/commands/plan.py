"""`troupe plan AGENT --env ID --mesh AXES --schedule TACTICS`, or `--devices N` instead"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from ....launch.errors import RequestError
from ...tuned import Tuned
from .. import asking
from ..parser import Commands, add_partition, add_sampler, add_task


def register(commands: Commands) -> None:
    parser = commands.add(
        "plan", "say what a mesh and a schedule make of an agent's step, and what it costs", plan
    )
    add_task(parser, needs_env=False)
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help="of a language model, as --config.preset; without --env it is planned for 64 groups "
        "of 32 answers of 932 tokens in bfloat16, as others publish their figures of",
    )
    add_partition(parser)
    add_sampler(parser)
    parser.add_argument(
        "--devices",
        type=int,
        metavar="N",
        help="with neither mesh nor schedule: choose both for so many devices, of an agent that "
        "answers prompts those of its sampler too",
    )
    parser.add_argument(
        "--sampler-devices",
        type=int,
        metavar="M",
        help="of --devices, those that answer while the others learn; default: what is quickest "
        "of a half, a quarter and three",
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
            "--sampler-mesh was given with --devices, which chooses meshes itself; give --mesh and "
            "--schedule, or --sampler-devices."
        )
    if asked and options.sampler_devices is not None:
        raise RequestError(
            "--sampler-devices was given without --devices, of which it is a part; beside --mesh "
            "give --sampler-mesh."
        )
    from ....launch.specification import stored
    from ....partitioning import printing
    from ....partitioning.simulator import pictures
    from ....partitioning.tactics.search import search_drawing

    made, words, more, text = (_given if asked else _chosen)(options, tuned)
    if options.json:
        print(json.dumps({**json.loads(made.to_json()), **more}, indent=2))
    else:
        print(printing.report(made), *text, sep="\n")
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


_Found = tuple[Any, dict[str, Any], dict[str, Any], list[Any]]
"""The learner's plan, the words that a run makes it by, and what else is to be told: as JSON, and
as text."""


def _given(options: argparse.Namespace, tuned: Tuned) -> _Found:
    """Plans on the meshes that were given."""
    from ....launch import planning

    words = asking.partition(options)
    experiment = asking.recipe(options, tuned, **words, **asking.sampler(options)).experiment()
    made = planning.plan(experiment)
    if experiment.sampler_partition is None:
        return made, words, {}, []
    sampler = planning.plan_sampler(experiment, made)
    return made, words, {"sampler": sampler.to_json()}, [sampler]


def _chosen(options: argparse.Namespace, tuned: Tuned) -> _Found:
    """Plans on the meshes that are best for a number of devices."""
    from ....launch import answering, planning
    from ....launch.experiment import Partition
    from ....partitioning import parse_spread

    memory = options.memory
    _, again = parse_spread("auto:data", options.recompute, memory)
    experiment = asking.recipe(options, tuned).experiment()
    asked_for = Partition(None, (), again, options.placement, options.device)
    spec, more, text = planning.spec_of(experiment), {}, []
    if planning.answers_prompts(spec):
        arranging = answering.Arranging(experiment, spec, asked_for, memory)
        in_step = arranging.in_step(options.devices)
        found = in_step.learner
        text = ["the sampler:", in_step.sampler, in_step]
        more = {"in_step": in_step.to_json()}
        if options.devices > 1 or options.sampler_devices is not None:
            one_off = arranging.one_off(options.devices, options.sampler_devices)
            text.append(one_off)
            more["one_step_off"] = one_off.to_json()
    elif options.sampler_devices is not None:
        raise RequestError(
            f"--sampler-devices was given, and {options.agent} answers no prompts; give --mesh and "
            "--sampler-mesh."
        )
    else:
        found = planning.choose(experiment, options.devices, asked_for, memory, spec)
    best = {"mesh": found.best.mesh, "schedule": found.best.schedule}
    words = {**asking.partition(options), **best}
    return found.plan, words, {"choice": found.to_json(), **more}, [found, *text]
