"""`python -m troupe.baselines.comparison`: the short list, compared with the ledger of returns.

Cheap compiled runs of three agents on environments in JAX, thirty seeds each, minutes on two cores.
The exit code is 1 where returns are not shown to be those of the newest rows. With --record the
runs are added to the ledger as rows of this commit.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from ...launch.errors import Interrupted, RequestError, RunError, exit_code
from ...launch.logging import report
from . import short_list
from .verdicts import EQUIVALENT


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        raise RequestError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the short list; returns the exit code."""
    parser = _Parser(prog="python -m troupe.baselines.comparison", description=__doc__)
    parser.add_argument("--record", action="store_true", help="add rows to the ledger")
    parser.add_argument(
        "--only", metavar="NAME", help=f"one of {', '.join(one.name for one in short_list.TASKS)}"
    )
    parser.add_argument(
        "--out", metavar="DIR", help="of the runs; runs there go on; default: one in runs/"
    )
    reporter = report.for_stream()
    try:
        options = parser.parse_args(arguments)
        tasks = [one for one in short_list.TASKS if options.only in (None, one.name)]
        if not tasks:
            names = ", ".join(one.name for one in short_list.TASKS)
            raise RequestError(f"{options.only!r} is not on the short list, which has {names}.")
        out = pathlib.Path(options.out) if options.out else _free()
        if options.record:
            for name, path in short_list.record(tasks, out, reporter).items():
                print(f"{name}: a row in {path}")
            return 0
        found = short_list.compare(tasks, out, reporter)
        for name, words in found.items():
            print(f"{name}: {words}")
        return int(not all(words.startswith(EQUIVALENT) for words in found.values()))
    except (Interrupted, RunError, ValueError) as error:
        return _say(error, exit_code(error))
    finally:
        reporter.close()


def _free() -> pathlib.Path:
    """The first directory of runs/short-list-1, -2 and so on that is not there."""
    names = (pathlib.Path("runs", f"short-list-{number}") for number in itertools.count(1))
    return next(path for path in names if not path.exists())


def _say(error: Exception, code: int) -> int:
    print(f"troupe: {' '.join(str(error).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
