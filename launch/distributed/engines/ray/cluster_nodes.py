"""The nodes of a cluster, and what each must have so that roles can be on it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ray
from ray import exceptions
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ....errors import RequestError, RunError
from ....files import result

_LOOK_SECONDS = 120.0
_SEE_SECONDS = 3.0
"""Seconds after which a file of another machine may be seen at the latest, as on NFS."""
_RESERVE_SECONDS = 10.0
_SHOWN = 6

Bundle = Mapping[str, float]
"""The resources that one role takes of its node, by Ray's names."""


class Facts(NamedTuple):
    """Facts that a node tells of itself."""

    versions: Mapping[str, str]
    sees: bool
    """True if the run's directory is there."""


def alive() -> list[dict[str, Any]]:
    """Those of the cluster, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]


def host_of(node: Mapping[str, Any]) -> str:
    """Returns the name of a node in messages."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def end_process(pid: int) -> None:
    """Ends a process of the node that this is called on."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def affinity(node: str) -> NodeAffinitySchedulingStrategy:
    """Of what must be on a node, by its id."""
    return NodeAffinitySchedulingStrategy(node, soft=False)


def require_room(bundles: Sequence[Bundle], place: str) -> None:
    """Looks whether roles have room in the cluster, if nobody else is there.

    Args:
      bundles: of every role.
      place: what messages call the cluster.

    Raises:
      RequestError: if it lacks something, with what it has.
    """
    nodes = alive()
    needs: dict[str, float] = {}
    for bundle in bundles:
        for name, wanted in bundle.items():
            needs[name] = needs.get(name, 0.0) + wanted
    advice = "ask for fewer (--actors, --actor-cpus), or add nodes."
    for name, wanted in needs.items():
        has = sum(node["Resources"].get(name, 0.0) for node in nodes)
        if has < wanted:
            raise RequestError(
                f"the run needs {wanted:g} {name}, and {place} has {has:g} on "
                f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}; {advice}"
            )
    left = [dict(node["Resources"]) for node in nodes]
    for bundle in sorted(bundles, key=lambda one: sorted(one.values()), reverse=True):
        for free in left:
            if all(free.get(name, 0.0) >= wanted for name, wanted in bundle.items()):
                free.update({name: free.get(name, 0.0) - one for name, one in bundle.items()})
                break
        else:
            have = [f"{host_of(node)}: {_show(node['Resources'])}" for node in nodes]
            rest = [f"and {len(have) - _SHOWN} more"] if len(have) > _SHOWN else []
            raise RequestError(
                f"no node of {place} has room for one more role of {_show(bundle)} "
                f"({'; '.join(have[:_SHOWN] + rest)}); {advice}"
            )


def reserve(bundles: Sequence[Bundle], directory: pathlib.Path) -> tuple[str, PlacementGroup]:
    """Keeps room for the learner: on one node, this process's own where it has it, and on others.

    Args:
      bundles: of its processes; the first is on that node, the others spread where there is room.
      directory: of the run, which that node must see.

    Returns:
      The id of the node, and what is kept, a bundle for each.

    Raises:
      RunError: if none has it now.
    """
    own = ray.get_runtime_context().get_node_id()
    for node in sorted(alive(), key=lambda one: one["NodeID"] != own):
        if any(node["Resources"].get(name, 0.0) < one for name, one in bundles[0].items()):
            continue
        if node["NodeID"] != own and _ask([node], directory):
            continue
        # Ray's name of the node, of which all have a little.
        there = {f"node:{node['NodeManagerAddress']}": 0.001}
        first, *others = map(_some, bundles)
        group = ray.util.placement_group([{**first, **there}, *others], strategy="SPREAD")
        if group.wait(_RESERVE_SECONDS):
            return node["NodeID"], group
        ray.util.remove_placement_group(group)
    raise RunError(f"no node has room for {_show(bundles[0])}.")


def of_group(group: PlacementGroup) -> set[str]:
    """Ids of the nodes on which a group has something."""
    table = ray.util.placement_group_table(group)
    return set(table.get("bundles_to_node_id", {}).values()) - {""}


def address_of(node: str) -> str:
    """Of a node, by its id; raises KeyError if it is gone."""
    return {one["NodeID"]: one["NodeManagerAddress"] for one in alive()}[node]


def _some(bundle: Bundle) -> dict[str, float]:
    """Without what it has none of."""
    return {name: wanted for name, wanted in bundle.items() if wanted}


def require_alike(directory: pathlib.Path) -> None:
    """Looks whether all nodes have the versions of this one, and see the run's directory.

    Raises:
      RequestError: if one does not; the message names it.
    """
    own = ray.get_runtime_context().get_node_id()
    others = [node for node in alive() if node["NodeID"] != own]
    if not others:
        return
    if wrong := _ask(others, directory):
        more = f" (and {len(wrong) - 1} more like it)" if len(wrong) > 1 else ""
        raise RequestError(wrong[0] + more)


def _ask(others: Sequence[Mapping[str, Any]], directory: pathlib.Path) -> list[str]:
    """Returns a line for each node with which something is wrong."""
    here = result.versions()
    with _mark(directory) as (mark, text):
        asked = {
            node["NodeID"]: _look.options(
                num_cpus=0, scheduling_strategy=affinity(node["NodeID"])
            ).remote(mark, text)
            for node in others
        }
        return [
            f"node {host_of(node)} {found}"
            for node in others
            if (found := _wrong(asked[node["NodeID"]], here, directory)) is not None
        ]


@ray.remote
def _look(mark: str | None, text: str) -> Facts:
    deadline, sees = time.monotonic() + _SEE_SECONDS, mark is None
    while mark is not None and not sees and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            sees = pathlib.Path(mark).read_text() == text
        if not sees:
            time.sleep(0.1)
    return Facts(result.versions(), sees)


def _wrong(answer: Any, here: Mapping[str, str], directory: pathlib.Path) -> str | None:
    """Returns what is wrong with a node; None: nothing."""
    try:
        facts: Facts = ray.get(answer, timeout=_LOOK_SECONDS)
    except (exceptions.TaskUnschedulableError, exceptions.NodeDiedError):
        return None  # It has just left.
    except exceptions.RayError as error:
        last = str(error).strip().splitlines()[-1][:200]
        return f"cannot run this package: {last}; install the same there, or end that node."
    if other := other_version(facts.versions, here):
        return f"{other}; install the same on all nodes."
    if not facts.sees:
        return (
            f"does not see {directory}, where the run's checkpoints go; name a folder with --out "
            "that all nodes share."
        )
    return None


def other_version(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str | None:
    """Returns what a node has another version of; None: of nothing."""
    for name, version in ours.items():
        other = theirs.get(name, "none")
        if _told(name, other) != _told(name, version):
            return f"has {name} {other}, and this one has {version}"
    return None


def _told(name: str, version: str) -> str:
    """Returns what must be equal of a version: Pythons may differ in their last number."""
    return version.rpartition(".")[0] if name == "python" else version


@contextlib.contextmanager
def _mark(directory: pathlib.Path) -> Iterator[tuple[str | None, str]]:
    """A file that is seen where the directory would be, and what is in it; None: none can be."""
    parent = directory.absolute()
    while not parent.is_dir():
        parent = parent.parent
    mark, text = parent / f".troupe-{secrets.token_hex(8)}", secrets.token_hex(8)
    try:
        mark.write_text(text)
    except OSError:  # That nothing can be written there is said when the run begins.
        yield None, text
        return
    try:
        yield str(mark), text
    finally:
        mark.unlink(missing_ok=True)


def _show(resources: Mapping[str, float]) -> str:
    shown = [f"{resources.get(name, 0.0):g} {name}" for name in ("CPU", "GPU") if name in resources]
    return ", ".join(shown) or "nothing"
