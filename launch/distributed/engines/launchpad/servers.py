"""Servers of Courier and Reverb: started so that they listen on one address, and looked at after.

What rebuilds Python objects from what it is sent must not be reached from elsewhere in silence: a
server that cannot be kept to its address, or is found on another, is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ... import addresses
from . import loopback


@contextlib.contextmanager
def kept_to(address: str) -> Iterator[None]:
    """While it lasts, servers of this process, and of those forked from it, listen on `address`.

    The libraries must be imported before.

    Raises:
      OSError: if that cannot be.
    """
    with loopback.bound_to(address):
        yield


@contextlib.contextmanager
def starting(address: str) -> Iterator[int]:
    """A server is started within, at host:port; gives the port.

    Raises:
      OSError: if the port is taken, or can be reached otherwise than through the host.
    """
    host, _, port = address.rpartition(":")
    addresses.require_free(int(port))
    yield int(port)
    addresses.require_only(host, int(port))
