"""Which hosts a deployment is spread over, which of them this is, and which role is where."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import RequestError
from . import addresses

CORE = 0
"""Index of the host of all roles that others call: they share one fate."""


class Hosts(NamedTuple):
    """The hosts of one run, as one of them sees them."""

    names: tuple[str, ...]
    own: int
    """Index of this one."""
    address: str
    """Of this one, IPv4."""

    @property
    def is_core(self) -> bool:
        return self.own == CORE

    @property
    def name(self) -> str:
        return self.names[self.own]


def find(names: Sequence[str]) -> Hosts:
    """The hosts of these names, of which this machine must be one.

    Raises:
      RequestError: if one is not known here or is there twice, or none of them is this machine.
    """
    found: dict[str, str] = {}
    for name in names:
        address = _resolve(name)
        if address in found:
            raise RequestError(
                f"--hosts names {found[address]} and {name}, which are both {address}; "
                "name every host once."
            )
        found[address] = name
    own = [address for address in found if addresses.is_own(address)]
    if len(own) != 1:
        which = "none of them is" if not own else "several of them are"
        raise RequestError(
            f"the hosts are {', '.join(names)}, and {which} this machine, "
            f"{socket.gethostname()}; give the same hosts on every one of them, and begin there."
        )
    name = found[own[0]]
    if len(found) > 1 and own[0].startswith("127."):
        raise RequestError(
            f"{name} is {own[0]} here, where no other host reaches it; give its address in place "
            "of its name."
        )
    return Hosts(tuple(names), list(names).index(name), own[0])


def _resolve(name: str) -> str:
    why = "it is every address"
    try:
        address = socket.gethostbyname(name)
        if address != "0.0.0.0":
            return address
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
    raise RequestError(
        f"--hosts names {name!r}, which leads nowhere from here ({why}); give names that every "
        "host knows, or IPv4 addresses."
    )


def place(label: str, index: int, count: int) -> int:
    """Which of `count` hosts a role is on.

    Actors are on all but the core's, where there is another. The processes of a learner are one on
    each host as far as there are hosts, the first on the core's. All else is on the core's.

    Args:
      label, index: of the role; the index is among those of the label.
      count: of the hosts.
    """
    if label == "actor" and count > 1:
        return 1 + index % (count - 1)
    return index % count if label == "learner" else CORE
