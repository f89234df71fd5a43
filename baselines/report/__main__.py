"""`python -m troupe.baselines.report RUN_OR_FOLDER ... --out FOLDER`: a page of results.

Writes `results.md` and its pictures, of all runs that ended in these directories or anywhere below
them: interquartile means with 95 % intervals over seeds, performance profiles, learning curves, and
the commands that do the runs again. With --ledger it writes `history.md`, of the rows of
`baselines/returns/`, besides or instead.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from ...launch.errors import RequestError
from ..returns.ledger import FOLDER
from . import history
from .page import write
from .runs import collect


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        raise RequestError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the page; returns the exit code, 2 where there is nothing to write of."""
    parser = _Parser(prog="python -m troupe.baselines.report", description=__doc__)
    parser.add_argument(
        "runs", nargs="*", metavar="RUN_OR_FOLDER", help="directories of runs, or with runs below"
    )
    parser.add_argument(
        "--ledger",
        nargs="?",
        const=FOLDER,
        metavar="FOLDER",
        help="the history of a ledger; default: baselines/returns/rows",
    )
    parser.add_argument("--out", required=True, metavar="FOLDER", help="of the page")
    parser.add_argument("--title", default="Results", metavar="TEXT", help="default: Results")
    try:
        options = parser.parse_args(arguments)
        if not options.runs and options.ledger is None:
            raise RequestError("there is nothing to report: name RUN_OR_FOLDER, or --ledger.")
        if options.runs:
            print(write(collect(options.runs), options.out, options.title))
        if options.ledger is not None:
            print(history.write(options.ledger, options.out))
    except ValueError as error:
        print(f"troupe: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
