"""Gangs: roles that start, fail and are started again together."""

from __future__ import annotations

import dataclasses

from .. import addresses
from ..supervision.role import Settings

ADDRESS = "JAX_COORDINATOR_ADDRESS"
"""The environment variable in which the roles of a gang find where they meet."""


class Meeting:
    """Where a gang meets: another port in each of its lives.

    The port of an earlier life may linger, and a rank of it that is slow to die must not meet those
    of the next.
    """

    def __init__(self) -> None:
        self._address = ""

    def settings(self, settings: Settings, first: bool) -> Settings:
        """The settings with which one of the gang starts.

        Args:
          settings: of the role.
          first: whether it is the first of the gang to start, with which a new life begins.
        """
        if first:
            self._address = f"{addresses.LOOPBACK}:{addresses.free_ports(1)[0]}"
        environment = (*settings.environment, (ADDRESS, self._address))
        return dataclasses.replace(settings, environment=environment)
