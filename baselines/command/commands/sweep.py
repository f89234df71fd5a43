"""`troupe sweep AGENT --env ID --config.FIELD LO:HI ...`"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....launch.errors import RequestError, RunError
from ....launch.logging import report
from ...tuned import Tuned
from .. import asking, training
from ..parser import Commands, count

if TYPE_CHECKING:
    from ...sweep.request import SweepRequest

_ANYWAY = ("trials", "workers", "resume", "json", "debug")
"""What may be said where a sweep goes on."""
_NO_FLAGS = ("command", "parser", "overrides", "environment")


def register(commands: Commands) -> None:
    parser = commands.add(
        "sweep", "search for good settings: --config.FIELD LO:HI, LO:HI:log or A,B,C", sweep
    )
    parser.add_argument(
        "--trials", type=count, metavar="N", help="settings to be tried; default: 20"
    )
    parser.add_argument(
        "--workers", type=count, default=1, metavar="N", help="tried at the same time; default: 1"
    )
    parser.add_argument(
        "--seeds", type=count, default=1, metavar="N", help="runs of each trial; default: 1"
    )
    parser.add_argument(
        "--no-pruning", action="store_true", help="no trial ends early for being worse than others"
    )
    parser.add_argument("--out", metavar="DIR", help="of the sweep; default: one in runs/")
    parser.add_argument("--resume", metavar="DIR", help="go on with the sweep in DIR")
    parser.add_argument("--json", action="store_true", help="print sweep.json's content")
    training.add_flags(parser, commands.arguments, required=False)
    parser.set_defaults(parser=parser)


def sweep(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    from ...sweep import conduct, outcome, request

    if options.resume is not None:
        out = pathlib.Path(options.resume)
        asked = request.read(out)
        _check_resumed(options)
        if options.trials is not None:
            asked = dataclasses.replace(asked, trials=options.trials)
    else:
        asked = _asked(options, settings)
        out = pathlib.Path(options.out or asking.free_directory(asked.recipe, "sweep-"))
    reporter = report.for_stderr() if options.json else report.for_stream()
    try:
        tried = conduct.sweep(
            asked,
            out,
            resume=options.resume is not None,
            workers=options.workers,
            reporter=reporter,
        )
    finally:
        reporter.close()
    if options.json:
        print((out / request.FILE).read_text(), end="")
    else:
        print(outcome.table(asked, tried))
        print(f"see {out / request.FILE} and {out / 'sweep.png'}")
    best, target = outcome.best(tried), asked.recipe.evaluation.target_return
    if best is None:
        raise RunError(f"none of {len(tried)} trials was completed (see {out / 'logs'}).")
    if target is not None and (best.value is None or best.value < target):
        raise RunError(f"the best return of {best.value:.1f} is below the target of {target:g}.")
    return 0


def _asked(options: argparse.Namespace, settings: Sequence[Tuned]) -> SweepRequest:
    """Builds the request of a new sweep from options."""
    for name in ("agent", "env"):
        if getattr(options, name) is None:
            flag = {"agent": "an AGENT", "env": "an --env"}[name]
            raise RequestError(f"a sweep needs {flag}, or --resume DIR to go on with one.")
    from ....launch.specification import origins
    from ...sweep import request, space

    tuned = asking.tuned_for(options, settings)
    config = {**tuned.config, **options.overrides}
    swept, fixed = space.split(origins.find_builder(options.agent).config_class, config)
    # The tuned values of swept fields stay in the recipe: they are the first that are tried.
    options.overrides = {name: fixed[name] for name in options.overrides if name in fixed}
    return request.SweepRequest(
        training.recipe(options, settings),
        swept,
        trials=options.trials or 20,
        seeds=options.seeds,
        prune=not options.no_pruning,
    )


def _check_resumed(options: argparse.Namespace) -> None:
    """Raises RequestError where a sweep that goes on is asked for something new."""
    for given, prefix in ((options.overrides, "config"), (options.environment, "env")):
        for name in given:
            raise RequestError(f"--{prefix}.{name} belongs to a new sweep: leave it out.")
    for name, value in vars(options).items():
        if name not in (*_ANYWAY, *_NO_FLAGS) and value != options.parser.get_default(name):
            said = name if name == "agent" else f"--{name.replace('_', '-')}"
            raise RequestError(
                f"{said} {value} belongs to a new sweep: --resume goes on as {options.resume} was "
                "asked, with --trials and --workers if you like."
            )
