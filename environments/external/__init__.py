"""Environments that simulators serve from outside, over TCP.

`client` is what the simulator runs, by itself.
"""

from .environment import ExternalEnvironment
from .ids import PREFIX, make

__all__ = ["PREFIX", "ExternalEnvironment", "make"]
