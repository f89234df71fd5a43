"""`python -m troupe.partitioning`: what a schedule of a model costs, without a device."""

import gc
import sys

from .command import main
from .ir.garbage import no_garbage_collection

if __name__ == "__main__":
    with no_garbage_collection():
        status = main()
        # What is left goes with the process; the collector's last rounds over it take seconds.
        gc.freeze()
    sys.exit(status)
