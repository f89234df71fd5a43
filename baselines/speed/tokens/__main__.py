"""`python -m troupe.baselines.speed.tokens`: see `command`."""

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main())
