"""Servers that listen on this machine only.

Courier and Reverb take a port and no address: both ask gRPC for `[::]:PORT`, every interface, and
both rebuild Python objects from whatever is sent to them. gRPC offers no option for it, and a
network namespace needs rights that containers seldom give. So the one place is used where the
address passes through this process: the libraries' own call of `bind`. While a server starts, the
entry through which its library calls `bind` (its global offset table) leads to a function that
replaces the wildcard address by 127.0.0.1. Afterwards the socket table is read, and a server
that listens anywhere else is an error, not a surprise.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pathlib
import random
import socket
import struct
import threading
from collections.abc import Iterator

_LIBRARIES = ("courier/python/server.so", "reverb/libpybind.so")
_PT_DYNAMIC = 2
_DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_JMPREL, _DT_PLTRELSZ = 5, 6, 7, 8, 23, 2
_BIND = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, use_errno=True
)
_MAPPED_LOOPBACK = socket.inet_pton(socket.AF_INET6, "::ffff:127.0.0.1")
_LOCK = threading.Lock()
_libc = ctypes.CDLL(None, use_errno=True)
_libc.bind.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32)


def _bind_to_loopback(fd: int, address: int, length: int) -> int:
    """`bind`, with the wildcard address replaced."""
    (family,) = struct.unpack("=H", ctypes.string_at(address, 2))
    if family == socket.AF_INET6 and not any(ctypes.string_at(address + 8, 16)):
        # The socket takes IPv4 as well, so that the IPv4 loopback is reached through it.
        ctypes.memmove(address + 8, _MAPPED_LOOPBACK, 16)
    elif family == socket.AF_INET and not any(ctypes.string_at(address + 4, 4)):
        ctypes.memmove(address + 4, bytes((127, 0, 0, 1)), 4)
    result = _libc.bind(fd, address, length)
    ctypes.set_errno(ctypes.get_errno())
    return result


_callback = _BIND(_bind_to_loopback)


def _loaded_libraries() -> Iterator[tuple[str, int]]:
    """Path and base address of each loaded library that may hold a server."""
    seen = set()
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].endswith(_LIBRARIES) and fields[5] not in seen:
            seen.add(fields[5])  # The first mapping of a library is its base.
            yield fields[5], int(fields[0].split("-")[0], 16)


def _slots(path: str, base: int, symbol: bytes) -> list[int]:
    """Addresses of the entries through which a loaded 64-bit ELF library calls `symbol`."""
    image = pathlib.Path(path).read_bytes()
    if image[:5] != b"\x7fELF\x02":
        raise OSError(f"{path} is no 64-bit ELF library; servers cannot be kept to loopback.")
    (headers,) = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    segments = [struct.unpack_from("<IIQQQQ", image, headers + i * size) for i in range(count)]

    def offset(address: int) -> int:
        for kind, _, file_offset, start, _, length in segments:
            if kind == 1 and start <= address < start + length:
                return address - start + file_offset
        raise OSError(f"{path}: address {address:#x} lies in no segment.")

    dynamic = next(s for s in segments if s[0] == _PT_DYNAMIC)
    tags = dict(struct.unpack_from("<QQ", image, dynamic[2] + i) for i in range(0, dynamic[5], 16))
    strings, symbols = offset(tags[_DT_STRTAB]), offset(tags[_DT_SYMTAB])
    found = []
    for table, length in ((_DT_JMPREL, _DT_PLTRELSZ), (_DT_RELA, _DT_RELASZ)):
        for i in range(0, tags.get(length, 0), 24):
            where, info, addend = struct.unpack_from("<QQq", image, offset(tags[table]) + i)
            (name,) = struct.unpack_from("<I", image, symbols + 24 * (info >> 32))
            start = strings + name
            if (
                info >> 32
                and not addend
                and image[start : start + len(symbol) + 1] == symbol + b"\0"
            ):
                found.append(base + where)
    return found


def _write_pointer(address: int, value: int) -> None:
    page = address & ~(mmap.PAGESIZE - 1)
    # The loader makes the table read-only once it is filled in.
    writable = mmap.PROT_READ | mmap.PROT_WRITE
    if _libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), writable):
        error = ctypes.get_errno()
        raise OSError(error, f"cannot keep servers to loopback: {os.strerror(error)}")
    ctypes.c_uint64.from_address(address).value = value


@contextlib.contextmanager
def loopback_only() -> Iterator[None]:
    """While it lasts, Courier and Reverb servers that start in this process bind to 127.0.0.1."""
    with _LOCK:
        slots = [slot for path, base in _loaded_libraries() for slot in _slots(path, base, b"bind")]
        target = ctypes.cast(_callback, ctypes.c_void_p).value
        assert target is not None
        before = [ctypes.c_uint64.from_address(slot).value for slot in slots]
        for slot in slots:
            _write_pointer(slot, target)
        try:
            yield
        finally:
            for slot, value in zip(slots, before, strict=True):
                _write_pointer(slot, value)


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
                words = struct.pack(f"={len(address) // 8}I", *_words(address))
                found.append(socket.inet_ntop(family, words))
    return found


def _words(address: str) -> list[int]:
    return [int(address[i : i + 8], 16) for i in range(0, len(address), 8)]


def is_loopback(address: str) -> bool:
    return address.removeprefix("::ffff:").startswith("127.") or address == "::1"


def require_free(port: int) -> None:
    """Raises OSError where something listens at `port`; gRPC would share the port in silence."""
    taken = listening(port)
    if taken:
        raise OSError(f"port {port} is taken: something listens on {', '.join(taken)} already.")


def require_loopback(port: int) -> None:
    """Raises OSError where other machines can reach what listens at `port`."""
    addresses = listening(port)
    if not all(map(is_loopback, addresses)):
        raise OSError(
            f"the server at port {port} listens on {', '.join(addresses)}, where other machines "
            "reach it; it was to listen on 127.0.0.1 only."
        )


def free_ports(count: int) -> list[int]:
    """Ports at which nothing listens, all different.

    They lie outside the range from which the system takes ports for outgoing connections, so that none
    is taken while a server is started again.
    """
    limits = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    ports = random.SystemRandom().sample(range(10_000, max(int(limits[0]), 12_000)), 2_000)
    found: list[int] = []
    for port in ports:
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"of {len(ports)} ports only {len(found)} are free; {count} are needed.")
