"""The command `troupe`: the command line of `launch` with the tuned settings of this floor."""

from __future__ import annotations

import sys

from ..launch import cli
from .settings import SETTINGS


def main() -> int:
    """Runs the process's arguments; returns its exit code."""
    return cli.main(settings=SETTINGS)


if __name__ == "__main__":
    sys.exit(main())
