"""`python -m troupe.baselines.command`: the command `troupe`."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
