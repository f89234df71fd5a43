"""`troupe compare AGENT --env ID --scales SPEC ... --out DIR`"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from collections.abc import Sequence

from ....launch.experiment import Evaluation
from ...tuned import Tuned
from .. import asking
from ..parser import Commands, add_data, add_task, count

_SEEDS = 60


def register(commands: Commands) -> None:
    parser = commands.add(
        "compare",
        "train at several scales until returns are shown to be equal, or not",
        compare,
    )
    add_task(parser)
    add_data(parser)
    parser.add_argument(
        "--scales",
        required=True,
        nargs="+",
        metavar="SPEC",
        help="KIND[:ACTORS][+inference[:SERVERS]][+gang:HOSTS][@MESH[@SCHEDULE]], as processes:4, "
        "ray:2+inference, gang:2 or one-process@data=2@batch:data; all are compared with the first",
    )
    parser.add_argument(
        "--ledger",
        action="store_true",
        help="compare one scale with its newest row in baselines/returns/, whose settings it has "
        "by default",
    )
    parser.add_argument(
        "--against",
        metavar="COMMIT|PYTHON",
        help="compare one scale with runs of another commit, or of another interpreter's packages",
    )
    parser.add_argument(
        "--margin",
        metavar="RETURN|PART%",
        help="the difference that counts; default: 10%% of the range from random to target return",
    )
    parser.add_argument(
        "--target", type=float, metavar="RETURN", help="of a good run; default: as tuned"
    )
    parser.add_argument(
        "--seeds",
        type=count,
        metavar="N",
        help=f"the most at each scale; default: {_SEEDS}, with --ledger those of the row",
    )
    parser.add_argument(
        "--batch", type=count, default=10, metavar="N", help="seeds between looks; default: 10"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the first of them; default: 0"
    )
    parser.add_argument(
        "--parallel",
        type=count,
        default=1,
        metavar="P",
        help="processes at the same time; default: 1, and no further process",
    )
    parser.add_argument(
        "--steps",
        type=count,
        metavar="N",
        help="actor steps, with --data gradient steps; default: as tuned, or 100000",
    )
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="of all runs; a comparison there goes on"
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="keep the answers in baselines/returns/verdicts/ of the checkout",
    )
    parser.add_argument("--json", action="store_true", help="print comparison.json's content")


def compare(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    from ....launch.errors import RequestError
    from ...comparison.conduct import check
    from ...comparison.elsewhere import Elsewhere
    from ...comparison.margin import make_rule
    from ...comparison.request import ComparisonRequest
    from ...comparison.scales import parse_scales
    from ...returns import ledger
    from .. import comparisons

    scales = parse_scales(options.scales)
    if options.ledger and options.against:
        raise RequestError("--ledger and --against are two references; name one.")
    against = Elsewhere.parse(options.against) if options.against else None
    tuned = asking.tuned_for(options, settings)
    row = ledger.last(scales[0].of(asking.recipe(options, tuned))) if options.ledger else None
    if row is None:
        evaluation = Evaluation(every=tuned.evaluation_every)
    else:
        tuned = dataclasses.replace(tuned, config=row.group("config"), steps=row.settings["steps"])
        evaluation = Evaluation(**row.group("evaluation"))
    recipe = asking.recipe(options, tuned, seed=options.seed, evaluation=evaluation)
    if row is not None:
        row.check(scales[0].of(recipe))
    recipe.experiment()  # What is wrong with the agent comes before what is with the margin.
    target = tuned.target if options.target is None else options.target
    rule, random = make_rule(recipe, options.margin, target, options.batch)
    request = ComparisonRequest(
        recipe,
        tuple(options.scales),
        rule,
        options.seeds or (_SEEDS if row is None else len(row.seeds)),
        options.parallel,
        random,
        target if random is not None else None,
        row,
        against,
    )
    check(request)  # Before the first of many runs.
    out = pathlib.Path(options.out)
    request.write(out)
    return comparisons.run(request, out, as_json=options.json, record=options.record)
