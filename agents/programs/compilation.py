"""Compiled programs are kept for the next start, and what runs once is compiled quickly.

The folder is `$XDG_CACHE_HOME/troupe/compiled` (`~/.cache/troupe/compiled`). In the environment,
`TROUPE_COMPILATION_CACHE` names another, or is `off`; `JAX_COMPILATION_CACHE_DIR` comes first.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import pathlib
import platform
import warnings
from collections.abc import Callable
from typing import Any

import jax

VARIABLE = "TROUPE_COMPILATION_CACHE"
MOST_BYTES = 1 << 30
"""Of all that is kept; what was used longest ago goes first. An agent's run keeps 0.3 to 1 MB."""
_LOG = logging.getLogger(__name__)


def keep_compiled() -> None:
    """Has jax look for compiled programs in the user's cache, and keep there what it compiles.

    Any process may call it, before it compiles or later. A folder that cannot be written is left
    alone, and so is jax's own setting where there is one.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked == "off" or jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        return
    try:
        root = pathlib.Path(asked).absolute() if asked else _user_cache() / "troupe" / "compiled"
        # jax's keys tell versions and devices apart, but not what the processor can do.
        folder = root / _processor()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} cannot be written")
        _prune(root)
    except (OSError, RuntimeError) as error:  # A RuntimeError: nobody's home.
        _LOG.log(
            logging.WARNING if asked else logging.DEBUG, "no compiled programs are kept: %s", error
        )
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # The smallest program takes 15 ms to compile and 2 to read.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # A file that another process is writing, or was when it was killed: it is compiled again.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")


def compile_once(fn: Callable[..., Any], device: jax.Device, **options: Any) -> Callable[..., Any]:
    """`jax.jit` of what runs once, such as a first state: quick to compile, with the same values.

    On CPU, LLVM's first level takes two thirds of the time of its highest. Without any
    optimisation products and sums are rounded apart, and values are others in their last bit; so
    they are on the first level of older versions.

    Args:
      fn: any function.
      device: on which it will run.
      **options: others of `jax.jit`.
    """
    quick = (
        device.platform == "cpu"
        and jax.__version_info__ >= (0, 12)
        and not jax.config.read("jax_disable_most_optimizations")
    )
    chosen = {"xla_backend_optimization_level": 1} if quick else None
    return jax.jit(fn, compiler_options=chosen, **options)


def in_turn(device: jax.Device) -> dict[str, Any] | None:
    """Options of `jax.jit` for what takes microseconds: its kernels run one after another.

    On CPU XLA runs independent kernels side by side, and threads that slept meanwhile take longer
    to wake than a choice of an action to compute: it takes 40 us in a loop with an environment, and
    75 us without these options (jax 0.12, two hidden layers of 256).
    """
    return _in_turn() if device.platform == "cpu" else None


@functools.cache
def _in_turn() -> dict[str, Any] | None:
    """The options by the name that they have in this version; None: nothing we know."""
    names: list[dict[str, Any]] = [
        {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"},
        {"xla_cpu_enable_concurrency_optimized_scheduler": False},
    ]
    for options in names:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            try:
                jax.jit(lambda: 0, compiler_options=options).lower().compile()
            except jax.errors.JaxRuntimeError:  # It knows no such option.
                continue
        return options
    return None


def _user_cache() -> pathlib.Path:
    named = os.environ.get("XDG_CACHE_HOME", "")
    return pathlib.Path(named) if os.path.isabs(named) else pathlib.Path.home() / ".cache"


def _processor() -> str:
    """A name for what this processor can do: its programs may end another's process."""
    features = platform.machine()
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "flags", "Features", "CPU part")):
                features += line
            elif not line:  # The others are like the first.
                break
    return hashlib.sha256(features.encode()).hexdigest()[:12]


def _prune(root: pathlib.Path) -> None:
    """Removes the files used longest ago, until `MOST_BYTES` are left."""
    found = []
    for path in root.glob("*/*"):
        with contextlib.suppress(OSError):  # Another process may prune as well.
            stat = path.stat()
            found.append((max(stat.st_atime, stat.st_mtime), stat.st_size, path))
    excess = sum(size for _, size, _ in found) - MOST_BYTES
    for _, size, path in sorted(found):
        if excess <= 0:
            break
        with contextlib.suppress(OSError):
            path.unlink()
        excess -= size
