"""`troupe plot DIR ...`"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence

from ...tuned import Tuned
from .. import running
from ..parser import Commands


def register(commands: Commands) -> None:
    parser = commands.add("plot", "draw the learning curves of one run or several", plot)
    parser.add_argument("runs", metavar="DIR", nargs="+", help="directories of runs")
    parser.add_argument("--save", metavar="FILE", help="default: curve.png, in DIR where it is one")


def plot(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    folder = pathlib.Path(options.runs[0]) if len(options.runs) == 1 else pathlib.Path()
    print(running.draw(options.runs, folder, options.save))
    return 0
