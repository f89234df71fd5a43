"""The variable server as a role."""

from __future__ import annotations

from ....agents.variables.server import VariableServer
from ..engines.launchpad.nodes import Service
from ..supervision import role


class VariableRole(Service):
    """Holds the number and place of the newest variables."""

    def __init__(self) -> None:
        self._variables = VariableServer()
        self.announce = self._variables.announce
        self.latest = self._variables.latest
        self.get = self._variables.get

    def run(self) -> None:
        self._serve()
        while not role.pause(0.5):
            pass
        self._end()
