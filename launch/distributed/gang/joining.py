"""Joining processes into one jax program, without taking their signals."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax._src import distributed
from jax._src.lib import _jax

from ...errors import RunError
from .. import addresses

HEARTBEAT_SECONDS = 12
"""Time that a process may be silent until the others give it up and end."""
_MEETING_SECONDS = 120


def join(address: str, size: int, rank: int) -> None:
    """Makes this process one of several that run programs together; jax must not be in use yet.

    Args:
      address: ADDRESS:PORT, where the process of rank 0 will listen.
      size: how many processes there are.
      rank: of this one.

    Raises:
      RuntimeError: if the others do not come.
      RunError: if jax does not know of them afterwards: each would learn for itself.
    """
    _keep_signals()
    _keep_to(addresses.towards(address.rpartition(":")[0]))
    _initialize(address, size, rank)
    if (jax.process_count(), jax.process_index()) != (size, rank):
        raise RunError(
            f"process {rank} of a gang of {size} did not join: jax takes it for process "
            f"{jax.process_index()} of {jax.process_count()}."
        )


def _keep_signals() -> None:
    """Without its watch for preemption, which takes SIGTERM away from this process."""
    if hasattr(jax.config, "jax_enable_preemption_service"):
        jax.config.update("jax_enable_preemption_service", False)
    else:
        state: Any = distributed.State
        state.initialize_preemption_sync_manager = lambda self: None


def _keep_to(own: str) -> None:
    """Has gloo listen on one address; by itself it listens where the name of the host leads."""
    made = _jax.make_gloo_tcp_collectives
    if not isinstance(made, functools.partial):
        _jax.make_gloo_tcp_collectives = functools.partial(made, hostname=own)


def _initialize(address: str, size: int, rank: int) -> None:
    options: dict[str, Any] = {
        "coordinator_address": address,
        "num_processes": size,
        "process_id": rank,
        "initialization_timeout": _MEETING_SECONDS,
        "coordinator_bind_address": address,
    }
    if jax.__version_info__ < (0, 7):
        # Only the state's own method knows of heartbeats there.
        for side in ("service", "client"):
            options[f"{side}_heartbeat_interval_seconds"] = 1
            options[f"{side}_max_missing_heartbeats"] = HEARTBEAT_SECONDS
        distributed.global_state.initialize(cluster_detection_method="deactivate", **options)
    else:
        options["heartbeat_timeout_seconds"] = HEARTBEAT_SECONDS
        jax.distributed.initialize(cluster_detection_method="deactivate", **options)
