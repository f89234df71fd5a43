"""`python -m troupe.baselines.speed AGENT`: see `agents`."""

import sys

from .agents import main

if __name__ == "__main__":
    sys.exit(main())
