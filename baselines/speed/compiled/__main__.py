"""Benchmarks of compiled runs.

    python -m troupe.baselines.speed.compiled --purejaxrl PYTHON CHECKOUT
    python -m troupe.baselines.speed.compiled --profile
    python -m troupe.baselines.speed.compiled --memory --seconds 600
    python -m troupe.baselines.speed.compiled --grid grid.jsonl --seconds 420
    python -m troupe.baselines.speed.compiled --picture grid.jsonl grid.png

Without an option of a mode: rates beside the same builder through Gymnasium and, where an
interpreter and a checkout are given, PureJaxRL's PPO (see `rates`). `phases`, `memory`, `grid` and
`picture` are the other modes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one of the benchmarks, and prints its figures."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--profile", action="store_true", help="shares of the parts of a turn")
    mode.add_argument("--memory", action="store_true", help="resident memory of a run")
    mode.add_argument("--grid", metavar="FILE", help="rates by environments, as lines of JSON")
    mode.add_argument("--picture", nargs=2, metavar=("FILE", "PNG"), help="draws such a file")
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="those to run")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each (default 2)")
    parser.add_argument("--seconds", type=float, help="of a measurement, or of the whole grid")
    parser.add_argument("--purejaxrl", nargs=2, metavar=("PYTHON", "CHECKOUT"))
    parser.add_argument("--tasks", nargs="+", metavar="ENV", help="of the grid")
    parser.add_argument("--envs", nargs="+", type=int, metavar="N", help="of the grid")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="S", help="of the grid")
    parser.add_argument("--rollout", type=int, default=128, help="steps of one, in the grid")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    options = parser.parse_args(argv)
    if options.picture:
        from . import picture

        picture.draw(*options.picture)
        return 0
    from ....agents.programs import runtime

    runtime.configure_cpu()  # Before jax touches a device.
    if options.grid:
        from . import grid

        return grid.main(options)
    from . import cases

    unknown = sorted(set(options.cases or ()) - set(cases.CASES))
    if unknown:
        parser.error(f"there is no case {unknown[0]!r}; there are {', '.join(cases.CASES)}.")
    names = options.cases or list(cases.CASES)
    found: object
    if options.memory:
        from . import memory

        found = memory.watch(cases.CASES[names[0]], options.seconds or 600.0)
        text = memory.table(found)
    elif options.profile:
        from . import phases

        rows = [phases.measure(name, options.rounds, options.seconds or 2.0) for name in names]
        found, text = rows, phases.table(rows)
    else:
        from . import rates

        try:
            compared = [
                rates.compare(name, options.rounds, options.seconds or 10.0, options.purejaxrl)
                for name in names
            ]
        except ValueError as error:
            print(f"troupe: {error}", file=sys.stderr)
            return 1
        found, text = compared, rates.table(compared)
    print(json.dumps(found, indent=2) if options.json else text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
