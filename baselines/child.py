"""Runs in a process of their own: `python -m troupe.baselines.child`.

What is to run stands in the first line of its standard input. When that ends, so has whoever wrote
it, and this process with it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

_STDIN = 0


def main() -> int:
    """Runs them; the exit code is that of `troupe train`, the last line of errors the reason."""
    asked = json.loads(_read_line())
    threading.Thread(target=_watch, daemon=True).start()
    # Only now: this takes seconds, in which whoever asked may have ended.
    from ..launch.errors import Interrupted, RunError, exit_code
    from ..launch.logging import report
    from ..launch.specification.recipe import Recipe
    from . import together

    reporter = report.Plain(sys.stdout)
    try:
        runs = [
            together.Asked(**{**one, "recipe": Recipe.from_json(one["recipe"])}) for one in asked
        ]
        for found in together.run(runs, reporter):
            if isinstance(found, Exception):
                raise found
    except (Interrupted, RunError, ValueError) as error:
        return _say(error, exit_code(error))
    return 0


def _read_line() -> bytes:
    line = b""
    while not line.endswith(b"\n") and (more := os.read(_STDIN, 1 << 16)):
        line += more
    return line


def _watch() -> None:
    """Ends this process when whoever started it does.

    Not through `sys.stdin`, whose lock a thread that waits would keep when the interpreter ends.
    """
    while os.read(_STDIN, 1 << 16):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def _say(error: Exception, code: int) -> int:
    print(" ".join(str(error).split()), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
