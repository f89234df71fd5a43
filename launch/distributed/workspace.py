"""Folders of one launch, with the name of the process that they belong to.

A launch that is killed cannot remove its folders, so a later one does. Launches in other containers
may share /dev/shm and /tmp, and have processes that are not seen from here: a folder is removed
only where its owner is known to be dead.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from ...agents.variables.version_board import shared_folder

_OWNER = ".owner"
_BOOT = pathlib.Path("/proc/sys/kernel/random/boot_id")
_START = 19
"""Field of /proc/PID/stat after the name: clock ticks from boot to the start of the process."""


@contextlib.contextmanager
def workspace_of(name: str) -> Iterator[pathlib.Path]:
    """Yields an empty folder for one launch, which is removed when it ends."""
    remove_abandoned()
    folder = shared_folder(f"{os.getpid()}-{name}")
    claim(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def claim(folder: pathlib.Path, pid: int | None = None) -> None:
    """Writes down whose a folder is.

    Args:
      folder: in /dev/shm or the temporary directory, with a name that begins with troupe-.
      pid: of the process that it belongs to; None: this one.
    """
    temporary = folder / f"{_OWNER}-{os.getpid()}"
    temporary.write_text(json.dumps(_identity(os.getpid() if pid is None else pid)))
    os.replace(temporary, folder / _OWNER)


def remove_abandoned() -> None:
    """Removes the folders of processes that have ended without doing it."""
    for parent in ("/dev/shm", tempfile.gettempdir()):
        for folder in pathlib.Path(parent).glob("troupe-*"):
            if _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: pathlib.Path) -> bool:
    """True if the owner of a folder is known to be dead: it ran in the kernel and the namespace of
    process numbers of this process, and no process with its number began when it did."""
    try:
        owner = json.loads((folder / _OWNER).read_text())
        pid, start = owner["pid"], owner["start"]
        return (owner["boot"], owner["namespace"]) == _place() and _start(pid) != start
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _identity(pid: int) -> dict[str, object]:
    boot, namespace = _place()
    return {"boot": boot, "namespace": namespace, "pid": pid, "start": _start(pid)}


def _place() -> tuple[str, str]:
    """Returns what process numbers here are of."""
    return _BOOT.read_text().strip(), os.readlink("/proc/self/ns/pid")


def _start(pid: int) -> str | None:
    """Returns when a process began; None: there is none."""
    try:
        stat = pathlib.Path("/proc", str(pid), "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return stat.rpartition(")")[2].split()[_START]
