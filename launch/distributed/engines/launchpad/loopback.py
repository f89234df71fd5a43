"""Servers that listen on this machine only, or on the one address that was asked for.

Courier and Reverb take a port and no address: both ask gRPC for `[::]:PORT`, every interface, and
both rebuild Python objects from whatever is sent to them. gRPC offers no option for it, and a
network namespace needs rights that containers seldom give. So the one place is used where the
address passes through this process: the libraries' own call of `bind`. While a server starts, the
entry through which its library calls `bind` (its global offset table) leads to a function that
replaces the wildcard address by the one meant. Where that cannot be done, nothing may start.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pathlib
import platform
import socket
import struct
import threading
from collections.abc import Iterator

_LIBRARIES = ("courier/python/server.so", "reverb/libpybind.so")
_PT_DYNAMIC = 2
_DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_JMPREL, _DT_PLTRELSZ = 5, 6, 7, 8, 23, 2
_LOCK = threading.Lock()
_KEPT: list[mmap.mmap] = []
_libc = ctypes.CDLL(None, use_errno=True)


# `bind(fd, address, length)` for x86-64, which the wheels of Courier and Reverb are made for. It is
# machine code because it must not wait for Python: a server may start while another thread holds
# the interpreter and waits for gRPC.
_BIND_CODE = (
    "66833e0a"  #         cmp word [rsi], AF_INET6
    "751d"  #             jne other
    "48837e0800"  #       cmp qword [rsi+8], 0      the address, in two halves
    "7529"  #             jne call
    "48837e1000"  #       cmp qword [rsi+16], 0
    "7522"  #             jne call
    "66c74612ffff"  #     mov word [rsi+18], 0xffff   ::ffff:address, which takes IPv4
    "c74614{address}"  #  mov dword [rsi+20], address
    "eb13"  #             jmp call
    "66833e02"  #  other: cmp word [rsi], AF_INET
    "750d"  #             jne call
    "837e0400"  #         cmp dword [rsi+4], 0
    "7507"  #             jne call
    "c74604{address}"  #  mov dword [rsi+4], address
    "48b8"  #      call:  mov rax, the library's own bind
)
_JUMP = bytes.fromhex("ffe0")  # jmp rax


def _write_code(own_bind: int, address: str) -> mmap.mmap:
    """`_BIND_CODE`, ending in a jump to `own_bind`, where it can be run."""
    if platform.machine() != "x86_64":
        raise OSError(f"servers can be kept to {address} on x86_64 only, not {platform.machine()}.")
    code = bytes.fromhex(_BIND_CODE.format(address=socket.inet_aton(address).hex()))
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    memory.write(code + struct.pack("<Q", own_bind) + _JUMP)
    _protect(_address(memory), mmap.PROT_READ | mmap.PROT_EXEC)
    return memory


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _protect(address: int, protection: int) -> None:
    page = address & ~(mmap.PAGESIZE - 1)
    if _libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), protection):
        error = ctypes.get_errno()
        raise OSError(error, f"cannot keep servers to one address: {os.strerror(error)}")


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
        raise OSError(f"{path} is no 64-bit ELF library; servers cannot be kept to one address.")
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


@contextlib.contextmanager
def bound_to(address: str) -> Iterator[None]:
    """While it lasts, Courier and Reverb servers that start in this process bind to one address.

    Only libraries that are loaded already are kept to it.

    Args:
      address: of IPv4.

    Raises:
      OSError: if a library cannot be kept to it, or none is loaded.
    """
    with _LOCK:
        slots = [slot for path, base in _loaded_libraries() for slot in _slots(path, base, b"bind")]
        if not slots:
            raise OSError(f"no server's library is loaded that could be kept to {address}.")
        own_bind = ctypes.cast(_libc.bind, ctypes.c_void_p).value
        assert own_bind is not None
        code = _write_code(own_bind, address)
        before = [ctypes.c_uint64.from_address(slot).value for slot in slots]

        def lead(values: list[int]) -> None:
            for slot, value in zip(slots, values, strict=True):
                # The loader makes the table read-only once it is filled in.
                _protect(slot, mmap.PROT_READ | mmap.PROT_WRITE)
                ctypes.c_uint64.from_address(slot).value = value

        lead([_address(code)] * len(slots))
        _KEPT.append(code)  # A thread may be in it when the table is led back.
        try:
            yield
        finally:
            lead(before)
