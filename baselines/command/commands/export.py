"""`troupe export DIR`"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ....launch.logging import report
from ...tuned import Tuned
from ..parser import Commands


def register(commands: Commands) -> None:
    parser = commands.add("export", "write a run's policy as one file that jax alone runs", export)
    parser.add_argument("run", metavar="DIR", help="directory of the run")
    parser.add_argument(
        "--best", action="store_true", help="the best policy by the run's evaluations"
    )
    parser.add_argument("--out", metavar="FILE.zip", help="default: policy.zip in DIR")


def export(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    from ....launch.evaluation import export as exporting

    path = exporting.export(
        options.run,
        options.out,
        "best" if options.best else "newest",
        reporter=report.for_stderr(),
    )
    print(path)
    return 0
