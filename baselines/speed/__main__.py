"""`python -m troupe.baselines.speed AGENT`: see `agents`."""

import signal
import sys

from .agents import main

if __name__ == "__main__":
    # The process that measures is ended too, as by Ctrl-C.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
