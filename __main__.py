"""The command `troupe`, also as `python -m troupe`.

Its imports take a part of a second, in which Ctrl-C is answered as later.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Runs the process's arguments; returns its exit code."""
    first = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if first:  # Else it is ignored, or somebody else's.
        signal.signal(signal.SIGINT, _leave)
    from .baselines.command import main as run

    return run(lambda: signal.signal(signal.SIGINT, signal.default_int_handler) if first else None)


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends the process. An exception would have to get through whatever is half imported."""
    os.write(2, b"troupe: interrupted.\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
