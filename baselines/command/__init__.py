"""The command `troupe`: the command line of `launch` with the tuned settings of this floor."""

from __future__ import annotations

from ..settings import SETTINGS
from . import line


def main() -> int:
    """Runs the process's arguments; returns its exit code."""
    return line.main(settings=SETTINGS)
