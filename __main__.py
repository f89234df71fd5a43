"""`python -m troupe`: the command `troupe`."""

import sys

from .baselines.command import main

if __name__ == "__main__":
    sys.exit(main())
