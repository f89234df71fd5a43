"""The variable server as a role."""

from __future__ import annotations

from ....agents.variables.server import VariableServer
from .rpc import Service


class VariableRole(Service, VariableServer):
    """Holds the number and place of the newest variables."""
