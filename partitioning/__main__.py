"""`python -m troupe.partitioning`: what a schedule of a model costs, without a device."""

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main())
