"""Addresses and ports of this machine, and who listens there, from the kernel's own table."""

from __future__ import annotations

import ipaddress
import pathlib
import random
import socket
import struct

from ..errors import RequestError

LOOPBACK = "127.0.0.1"


def require_own(address: str) -> None:
    """Raises RequestError where servers cannot listen on `address`."""
    try:
        version = ipaddress.ip_address(address).version
    except ValueError:
        version = None
    if version != 4 or address == "0.0.0.0":
        raise RequestError(
            f"servers cannot listen on {address!r}: it must be one IPv4 address of this machine, "
            f"such as {LOOPBACK} (--listen)."
        )
    with socket.socket() as one:
        try:
            one.bind((address, 0))
        except OSError:
            raise RequestError(
                f"servers cannot listen on {address}: this machine has no such address (--listen)."
            ) from None


def towards(other: str) -> str:
    """The address of this machine from which another, or its own, is reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect((other, 9))  # Nothing is sent.
        return one.getsockname()[0]


def free_ports(count: int, address: str = LOOPBACK) -> list[int]:
    """Ports of an address at which nothing listens, all different.

    They lie outside the range from which the system takes ports for outgoing connections, so that
    none is taken while a server is started again.
    """
    limits = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    ports = random.SystemRandom().sample(range(10_000, max(int(limits[0]), 12_000)), 2_000)
    found: list[int] = []
    for port in ports:
        with socket.socket() as one:
            try:
                one.bind((address, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"of {len(ports)} ports only {len(found)} are free; {count} are needed.")


def listening(port: int) -> list[str]:
    """The addresses on which anything on this machine listens at `port`."""
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        path = pathlib.Path(f"/proc/self/net/{table}")
        if not path.exists():
            continue
        for line in path.read_text().splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            address, number = local.split(":")
            if state == "0A" and int(number, 16) == port:
                words = [int(address[i : i + 8], 16) for i in range(0, len(address), 8)]
                found.append(socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words)))
    return found


def require_free(port: int) -> None:
    """Raises OSError where something listens at `port`; gRPC would share the port in silence."""
    taken = listening(port)
    if taken:
        raise OSError(f"port {port} is taken: something listens on {', '.join(taken)} already.")


def require_only(host: str, port: int) -> None:
    """Raises OSError where what listens at `port` can be reached otherwise than through `host`."""
    found = listening(port)
    if any(address.removeprefix("::ffff:") != host for address in found):
        raise OSError(
            f"the server at port {port} listens on {', '.join(found)}, where others may reach it; "
            f"it was to listen on {host} only."
        )
