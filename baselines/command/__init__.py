"""The command `troupe`: the command line of `launch` with the tuned settings of this floor."""

from __future__ import annotations

from collections.abc import Callable

from ..settings import SETTINGS
from . import line


def main(begin: Callable[[], object] = lambda: None) -> int:
    """Runs the process's arguments; returns its exit code.

    Args:
      begin: called once a KeyboardInterrupt is answered here.
    """
    return line.main(settings=SETTINGS, begin=begin)
