"""`troupe compare AGENT --env ID --scales SPEC ... --out DIR`"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

from ....launch.errors import RequestError, RunError
from ....launch.experiment import Evaluation
from ....launch.files.directory import RunDirectory
from ....launch.logging import report
from ....launch.specification.recipe import Recipe
from ....launch.specification.stored import engine
from ...tuned import Tuned
from .. import asking, running
from ..parser import Commands, add_data, add_task, count


def register(commands: Commands) -> None:
    parser = commands.add(
        "compare", "train at several scales and say whether the returns are equal", compare
    )
    add_task(parser)
    add_data(parser)
    parser.add_argument(
        "--scales",
        required=True,
        nargs="+",
        metavar="SPEC",
        help="KIND[:ACTORS][@MESH@SCHEDULE], as processes:4 or one-process@data=2@batch:data; "
        "all are compared with the first",
    )
    parser.add_argument(
        "--seeds", type=count, default=5, metavar="N", help="runs at each scale; default: 5"
    )
    parser.add_argument(
        "--steps",
        type=count,
        metavar="N",
        help="actor steps, with --data gradient steps; default: as tuned, or 100000",
    )
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="of all runs; those that are there go on"
    )
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")


def compare(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    from ... import comparison
    from ...scales import parse_scales

    tuned = asking.tuned_for(options, settings)
    scales = parse_scales(options.scales)
    comparison.check(len(scales), options.seeds)
    recipes = {
        scale: asking.recipe(
            options,
            tuned,
            evaluation=Evaluation(**asking.given(every=tuned.evaluation_every)),
            mesh=scale.mesh,
            schedule=scale.schedule,
            launch=scale.launch,
            roles=asking.given(actors=scale.actors),
        )
        for scale in scales
    }
    for recipe in recipes.values():  # Before the first of many runs.
        recipe.experiment()
        running.runner_of(recipe)
    out = pathlib.Path(options.out)
    returns = {
        scale.text: [
            _final_return(dataclasses.replace(recipe, seed=seed), out / scale.folder / str(seed))
            for seed in range(options.seeds)
        ]
        for scale, recipe in recipes.items()
    }
    rows = comparison.compare(returns)
    found = json.dumps([dataclasses.asdict(row) for row in rows])
    (out / "comparison.json").write_text(found + "\n")
    print(found if options.json else comparison.table(rows))
    differing = ", ".join(row.scale for row in rows if row.differs)
    if differing:
        raise RunError(f"the returns at {differing} differ from those at {rows[0].scale}.")
    return 0


def _final_return(recipe: Recipe, path: pathlib.Path) -> float:
    """The mean return of the final evaluation of a run, which is done where it is not yet."""
    from ....launch.files.checkpoints import Store

    directory = RunDirectory(path)
    request = recipe.to_json()
    if directory.config.exists():
        found = directory.read_config()
        other = _difference({**found, "engine": engine(found)}, json.loads(json.dumps(request)))
        if other:
            raise RequestError(
                f"{path} holds a run that was asked for otherwise: {other}; name another --out."
            )
    begun = bool(Store(directory.checkpoints).paths())
    if directory.config.exists() and not begun:
        directory.check_free()
        shutil.rmtree(path)  # It died before its first checkpoint: there is nothing to go on from.
    if not directory.result.exists():
        reporter = report.for_stderr()
        run, experiment = running.runner_of(recipe), recipe.experiment()
        try:
            run(experiment, path, resume=begun, reporter=reporter, request=request)
        finally:
            reporter.close()
    return json.loads(directory.result.read_text())["evaluation"][-1]["mean"]


def _difference(found: Any, asked: Any, name: str = "") -> str | None:
    """The first setting that two values of JSON differ in; None where they are equal."""
    if isinstance(found, dict) and isinstance(asked, dict):
        for key in [*asked, *(key for key in found if key not in asked)]:
            inner = f"{name}.{key}" if name else key
            different = _difference(found.get(key), asked.get(key), inner)
            if different:
                return different
        return None
    return None if found == asked else f"{name} was {json.dumps(found)} and is {json.dumps(asked)}"
