"""The board of the newest variables, as roles may expect it to be, whatever keeps them."""

from __future__ import annotations

from typing import Protocol

from ....agents.variables.publisher import Publisher
from ....agents.variables.reader import VariableReader


class VariableBoard(Protocol):
    """The newest variables, by version: one learner writes, anyone reads."""

    def publisher(self, part: int = 0, parts: int = 1, *, spreads: bool = False) -> Publisher:
        """The learner's proxy, which never makes it wait.

        Args:
          part: the number of the part of each version that is offered here, by one of a gang.
          parts: how many make a version.
          spreads: True if all readers spread variables over devices.
        """

    def reader(self, on_host: bool = False) -> VariableReader:
        """A source of variables that keeps up; its first `get_variables` waits for a version.

        With `on_host` they stay on the host, for who spreads them over devices.

        The wait gives signs of life, and ends with `Stopped` where the role is asked to.
        """
