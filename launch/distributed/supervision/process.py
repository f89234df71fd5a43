"""Steps that every engine takes around a role that is a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from ...errors import DivergedError, RequestError


def describe(error: BaseException) -> str:
    """An exception as one line."""
    text = " ".join(str(error).split())[:500]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_final(error: BaseException) -> bool:
    """True if a new start cannot help: what was asked for cannot be, be kept or be learned."""
    from ...files.checkpoints import CheckpointError  # With it comes jax, which not all roles need.

    return isinstance(error, RequestError | CheckpointError | DivergedError)


def redirect(log: str) -> None:
    """Has all that this process prints, its libraries too, appended to a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def set_environment(variables: Mapping[str, str | None]) -> None:
    """Sets environment variables, and unsets those that are None."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "jax" in sys.modules:
        # Read when jax was imported, which was before the fork.
        sys.modules["jax"].config.update("jax_platforms", os.environ.get("JAX_PLATFORMS"))
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # Forked roles would draw the same.
