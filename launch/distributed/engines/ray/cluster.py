"""The cluster that a run is on: one of its own on this machine, or one that is there."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pathlib
import secrets
import shutil
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import ray
from ray import exceptions

from ....errors import RequestError, RunError
from ... import workspace
from . import cluster_nodes

_STORE_BYTES = 1 << 30
_KNOCK_SECONDS = 5.0
_SHARES = (1.0, 0.5, 0.25, 0.125)
"""Processors that an actor takes where nobody says how many: the first for which there is room."""
# Ray gives its own processes half a minute, and raises Exception itself where one is late.
_STARTS = 4
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_BACKEND_LOG_LEVEL": "error",
    # By default what Ray starts is nicer than all else by 15: beside two busy processes on two
    # cores, roles then have a thirtieth of one.
    "RAY_worker_niceness": "0",
}


class Cluster(NamedTuple):
    """The cluster that a run is on."""

    run: str
    """Namespace of its actors."""
    node: str
    """Id of the node that the run was begun on."""
    actor_cpus: float
    """Processors of its node that each process of actors takes."""


@contextlib.contextmanager
def connected(
    address: str | None,
    bundles: Callable[[float], Sequence[cluster_nodes.Bundle]],
    actor_cpus: float | None,
    directory: pathlib.Path,
) -> Iterator[Cluster]:
    """The cluster, while it lasts.

    Args:
      address: auto or HOST:PORT, of a cluster of which this machine is a node; None: one is started
        here, whose ports take the run's own token only, and ended with the run.
      bundles: what the roles take of their nodes, each, by the processors of one of the actors.
      actor_cpus: how many those are; None: one, or where there is no room for that, a part of one.
      directory: of the run.

    Raises:
      RequestError: if no cluster answers there, it has not so much, or one of its nodes has other
        versions or does not see the directory.
    """
    with contextlib.ExitStack() as stack:
        if ray.is_initialized():
            if address is not None:
                raise RequestError(
                    f"the address is {address}, and this process is in a Ray cluster already; "
                    "leave out the address to run there."
                )
        elif address is None:
            stack.enter_context(
                _started(sum(one["CPU"] for one in bundles(actor_cpus or _SHARES[0])))
            )
        else:
            stack.enter_context(_joined(address))
        place = "this machine" if address is None else f"the Ray cluster at {address}"
        share = share_with_room(bundles, actor_cpus, place)
        cluster_nodes.require_alike(directory)
        own = ray.get_runtime_context().get_node_id()
        yield Cluster(f"troupe-{uuid.uuid4().hex}", own, share)


def share_with_room(
    bundles: Callable[[float], Sequence[cluster_nodes.Bundle]], actor_cpus: float | None, place: str
) -> float:
    """The processors of an actor for which there is room in the cluster.

    Args: as of `connected`, and `nodes.require_room`.

    Raises:
      RequestError: if there is none for so many, or for the least that an actor takes.
    """
    shares = _SHARES if actor_cpus is None else (actor_cpus,)
    for share in shares[:-1]:
        with contextlib.suppress(RequestError):
            cluster_nodes.require_room(bundles(share), place)
            return share
    cluster_nodes.require_room(bundles(shares[-1]), place)
    return shares[-1]


@contextlib.contextmanager
def _started(cpus: float) -> Iterator[None]:
    """A cluster of this machine alone, that has so many processors however few there are."""
    folder = tempfile.mkdtemp(prefix=f"troupe-{os.getpid()}-ray-")
    workspace.claim(pathlib.Path(folder))  # One that is left behind is removed by later runs.
    _settle_environment()
    if not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        # Ray asks for a token where it starts by itself, and would keep one in the home directory.
        # It stays: Ray reads it once in a process, for all clusters that this one starts.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    try:
        for attempt in range(_STARTS):
            try:
                ray.init(
                    num_cpus=max(os.cpu_count() or 1, math.ceil(cpus)),
                    object_store_memory=_store_bytes(),
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=folder,
                )
                break
            except Exception as error:
                ray.shutdown()
                if attempt == _STARTS - 1:
                    raise RunError(f"Ray could not be started here: {_line(error)}") from error
        try:
            yield
        finally:
            ray.shutdown()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _joined(address: str) -> Iterator[None]:
    _settle_environment()
    folder = tempfile.mkdtemp(prefix=f"troupe-{os.getpid()}-package-")
    workspace.claim(pathlib.Path(folder))
    try:
        _knock(address)
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"py_modules": [_package(pathlib.Path(folder))]},
        )
    except (ValueError, OSError) as error:
        raise RequestError(
            f"no Ray cluster answers at {address} ({_line(error)}); start one with `ray start` on "
            "each of its nodes, this one too, or leave out --address to start one here."
        ) from error
    except (RuntimeError, exceptions.RayError) as error:
        # Of another Python or Ray, say, or without its token.
        raise RequestError(f"the Ray cluster at {address} takes no run: {_line(error)}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    try:
        yield
    finally:
        ray.shutdown()


def _package(folder: pathlib.Path) -> str:
    """A copy of this package, which Ray brings to nodes: all roles run the same."""
    root, target = pathlib.Path(__file__).parents[4], folder / "troupe"
    target.mkdir()
    for init in root.glob("*/__init__.py"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(init.parent, target / init.parent.name, ignore=ignored)
    for file in (*root.glob("__*__.py"), *root.glob("py.typed")):
        shutil.copy(file, target)
    return str(target)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _knock(address: str) -> None:
    """Raises OSError where nothing listens, for which Ray itself would wait minutes."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdigit():
        raise ValueError("an address is auto or HOST:PORT")
    # By loopback Ray means the address by which others know this machine.
    known = ray.util.get_node_ip_address() if host in ("127.0.0.1", "localhost") else host
    try:
        socket.create_connection((known, int(port)), _KNOCK_SECONDS).close()
    except OSError as error:
        if known == host:
            raise
        raise OSError(f"Ray takes {host} for {known}, and there: {error}") from error


def _settle_environment() -> None:
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)


def _store_bytes() -> int:
    """Of the object store: it holds parameters and batches on their way, and nothing for long."""
    space = os.statvfs("/dev/shm") if pathlib.Path("/dev/shm").is_dir() else None
    free = space.f_bavail * space.f_frsize if space else 0
    return max(80_000_000, min(_STORE_BYTES, free // 2))
