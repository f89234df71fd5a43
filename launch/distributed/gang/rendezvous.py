"""Gangs: roles that start, fail and are started again together."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable

from .. import addresses
from ..supervision.role import Settings

ADDRESS = "JAX_COORDINATOR_ADDRESS"
"""The environment variable in which the roles of a gang find where they meet."""
WORDS, TOKEN = "TROUPE_GANG_WORDS", "TROUPE_GANG_TOKEN"
"""Likewise, where they are on several machines: ADDRESS:PORT of what they say to each other, and
what only they know."""


class Rendezvous:
    """Chooses where a gang meets: another port in each of its incarnations.

    The port of an earlier incarnation may linger, and a rank of it that is slow to die must not
    meet those of the next.
    """

    def __init__(self, find: Callable[[], tuple[str, str] | None] = lambda: None) -> None:
        """Takes what gives two free ports of the machine of rank 0, each as ADDRESS:PORT, for every
        incarnation; None: all are on one machine."""
        self._find = find
        self._variables: dict[str, str] = {}

    def settings(self, settings: Settings, first: bool) -> Settings:
        """The settings with which one of the gang starts.

        Args:
          settings: of the role.
          first: whether it is the first of the gang to start, with which a new incarnation begins.
        """
        if first:
            self._variables = self._places()
        environment = (*settings.environment, *self._variables.items())
        return dataclasses.replace(settings, environment=environment)

    def _places(self) -> dict[str, str]:
        found = self._find()
        if found is None:
            return {ADDRESS: f"{addresses.LOOPBACK}:{addresses.free_ports(1)[0]}"}
        coordinator, words = found
        return {ADDRESS: coordinator, WORDS: words, TOKEN: secrets.token_hex(32)}
