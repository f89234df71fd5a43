"""`troupe weights DIR`"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from ....launch.logging import report
from ...tuned import Tuned
from ..parser import Commands


def register(commands: Commands) -> None:
    parser = commands.add(
        "weights", "list the arrays of a run's learner, which --from-only names", weights
    )
    parser.add_argument("run", metavar="DIR", help="directory of the run")
    parser.add_argument("--json", action="store_true", help="print them as JSON")


def weights(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    from ....launch.evaluation.learner import load_learner

    found = load_learner(options.run, reporter=report.for_stderr())
    arrays = found.arrays
    if options.json:
        rows = [
            {"name": name, "dtype": str(array.dtype), "shape": [*array.shape]}
            for name, array in arrays.items()
        ]
        print(json.dumps({"checkpoint": str(found.path), "arrays": rows}))
        return 0
    wide = max(map(len, arrays), default=0)
    for name, array in arrays.items():
        print(f"{name:{wide}}  {array.dtype}{[*array.shape]}")
    total = sum(array.nbytes for array in arrays.values())
    print(
        f"{len(arrays)} arrays, {total / 2**20:.2f} MiB, in {found.path}, after "
        f"{found.learner_steps:,} gradient steps"
    )
    return 0
