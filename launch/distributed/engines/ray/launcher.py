"""Starts the roles of a deployment as Ray's actors, under a supervisor."""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import ray
from ray import exceptions
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ....files import result
from ... import addresses
from ...deployment import Deployment, Reference, RolePlan, Say
from ...gang.rendezvous import Rendezvous
from ...supervision import heartbeat
from ...supervision.role import Settings
from ...supervision.supervisor import Member, Supervisor
from . import cluster_nodes
from .actor_client import RayRemote
from .chunk_service import RayReplay
from .cluster import Cluster
from .host import BoardRow, Place, RoleEnd, RoleHost, Signs
from .object_board import RayBoard

_ASK_SECONDS = 0.5
_LEARNER_CPUS = 1.0
_PORT_SECONDS = 20.0
ANYWHERE = ("actor", "inference")
"""Labels of roles that may be on any node; all others are the core, on one."""


class Start(NamedTuple):
    """All that it takes to start a role, and start it again."""

    name: str
    row: int
    """Of its signs of life."""
    payload: Any
    """Reference to its constructor and arguments."""
    options: Mapping[str, Any]
    """Of its actor."""
    is_core: bool
    """True if it is one of those on the core's node."""
    answers: bool
    """True if others call it."""


class Seat(NamedTuple):
    """One incarnation of a run: where the roles are that share one fate."""

    incarnation: int
    node: str
    """Id of their node."""
    group: PlacementGroup
    """The resources kept for the learner, a bundle for each of its processes."""


class NodeLost(Exception):
    """The node of the core is gone."""


_remote: Any = ray.remote  # As typed it knows no groups of calls and no arguments with defaults.
_end_process = _remote(num_cpus=0)(cluster_nodes.end_process)


class RayHandle:
    """One incarnation of one role."""

    def __init__(self, log: pathlib.Path, begun: Callable[[], bool]) -> None:
        """Takes its log, and what says whether its process has given signs of life."""
        self.log, self._begun = log, begun
        self.pid: int | None = None
        self.exit_code: int | None = None
        """None: it has not ended. Negative: its process was ended from outside."""
        self.killed = self.final = False
        self.ended_at = 0.0
        self.actor: Any = None
        self.node: str | None = None
        """Of its process, by Ray's id."""
        self.is_here = False
        """True if that is this process's."""
        self.is_shown = False
        """True if its signs of life are on the board without being asked for."""
        self.has_run = False
        """True if its actor was told to run it."""
        self.is_alone = False
        """True if it answers no call while it runs."""
        self._reason = ""

    @property
    def running(self) -> bool:
        return self.exit_code is None

    def terminate(self) -> None:
        if not self.has_run or (self.is_alone and not self._begun()):
            if self.actor is not None:
                ray.kill(self.actor)
            self.end(RoleEnd(0))
        elif self.is_alone and self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
        else:
            self.actor.stop.remote()

    def kill(self) -> None:
        self.killed = True
        if self.actor is not None:
            ray.kill(self.actor)
        if self.is_here and self.pid is not None:
            # A process that was stopped does not hear of it otherwise.
            cluster_nodes.end_process(self.pid)
        elif self.pid is not None and self.node is not None:
            there = cluster_nodes.affinity(self.node)
            _end_process.options(scheduling_strategy=there).remote(self.pid)
        self.end(RoleEnd(-signal.SIGKILL, "killed"))

    def end(self, outcome: RoleEnd) -> None:
        """Takes how it ended."""
        if self.running:
            self.exit_code, self._reason, self.final = outcome[:3]
            self.ended_at = time.monotonic()

    def lose(self, error: exceptions.RayError) -> None:
        """Takes what Ray says of its actor; in full into its log, where a killed process says
        nothing."""
        if self.running:
            self.write(f"{error}\n".encode())
            self.end(_end(error))

    def reason(self) -> str:
        return self._reason

    def write(self, said: bytes) -> None:
        """Adds to its log what its node could not write there."""
        if said:
            with self.log.open("ab") as file:
                file.write(said)


class RayLauncher:
    """Starts roles as actors, and hears from them."""

    kills = True
    """A role that hangs can be ended."""

    def __init__(
        self,
        cluster: Cluster,
        core: Seat,
        workspace: pathlib.Path,
        logs: pathlib.Path,
        board: heartbeat.Board,
    ):
        """Nothing runs before the first `start`.

        Args:
          cluster: where.
          core: the incarnation of the run that the roles are of.
          workspace: a folder of this machine.
          logs: where every role's log file goes.
          board: on which signs of life are written down here.
        """
        self._cluster, self._core, self._board = cluster, core, board
        self._workspace, self._logs = str(workspace), logs
        self._incarnations: list[tuple[Start, Settings, RayHandle]] = []
        self._starts: collections.Counter[str] = collections.Counter()
        self._runs: dict[Any, RayHandle] = {}
        self._asked: dict[Any, tuple[Start, RayHandle]] = {}
        self._ask_at = 0.0
        self._versions = result.versions()
        self._unlike: set[str] = set()
        """Ids of nodes that joined, and have other versions."""

    def warm(self, settings: Sequence[Settings]) -> None:
        """Nothing to do: Ray has processes ready."""

    def start(self, start: Start, settings: Settings) -> RayHandle:
        """Starts a role; its actor is made with the next `poll`s."""
        self._board.clear(start.row)
        handle = RayHandle(
            self._logs / f"{start.name.replace('/', '-')}.log",
            lambda: self._board.read(start.row)[heartbeat.ALIVE] > 0.0,
        )
        self._incarnations.append((start, settings, handle))
        return handle

    def poll(self) -> None:
        """Brings the handles up to date.

        Raises:
          NodeLost: if the core's is gone.
        """
        self._incarnations = [
            incarnation for incarnation in self._incarnations if incarnation[2].running
        ]
        for start, settings, handle in self._incarnations:
            if handle.actor is None:
                self._make(start, settings, handle)
        self._take_ends()
        self._take_signs()
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at = now + _ASK_SECONDS
            self._require_node()
            waiting = {id(handle) for _, handle in self._asked.values()}
            for start, _, handle in self._incarnations:
                is_silent = handle.actor is not None and not handle.is_shown
                if is_silent and id(handle) not in waiting:
                    self._asked[handle.actor.signs.remote()] = (start, handle)

    def close(self) -> None:
        """Ends whatever is left."""
        for handle in [
            *(incarnation[2] for incarnation in self._incarnations),
            *self._runs.values(),
        ]:
            if handle.actor is not None:
                ray.kill(handle.actor)

    def _make(self, start: Start, settings: Settings, handle: RayHandle) -> None:
        """Makes the actor, where that of the incarnation before has let the name go."""
        held = {} if settings.accelerator else {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        own = dict(settings.environment)
        if settings.accelerator:
            own.pop("CUDA_VISIBLE_DEVICES", None)  # Ray says which are its own.
        run, incarnation = self._cluster.run, self._core.incarnation
        folder = (
            None if start.is_core and self._core.node != self._cluster.node else self._workspace
        )
        row = BoardRow(self._cluster.node, str(self._board.path), start.row)
        starts = self._starts[start.name]
        place = Place(
            start.name, run, incarnation, folder, str(handle.log), self._versions, starts, row
        )
        # Of a class of its own: its name is what `ps` and Ray's dashboard show.
        kind = type(start.name, (RoleHost,), {})
        host = _remote(concurrency_groups={"run": 1, "watch": 2})(kind)
        options = dict(start.options)
        if self._unlike and not start.is_core:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(sorted(self._unlike))})"}
        with contextlib.suppress(exceptions.ActorAlreadyExistsError):
            actor = host.options(name=start.name, namespace=run, **options).remote(
                place, {**held, **own}, sys.path
            )
            self._starts[start.name] += 1
            handle.actor = actor
            if start.answers:
                self._begin(start, handle)
            else:  # How it runs depends on where it is.
                self._asked[actor.signs.remote()] = (start, handle)

    def _begin(self, start: Start, handle: RayHandle) -> None:
        """Has its actor run a role."""
        handle.has_run, handle.is_alone = True, handle.is_shown and not start.answers
        run = handle.actor.run_alone if handle.is_alone else handle.actor.run
        self._runs[run.remote(start.payload)] = handle

    def _take_ends(self) -> None:
        if not self._runs:
            return
        ended, _ = ray.wait(list(self._runs), num_returns=len(self._runs), timeout=0)
        for run in ended:
            handle = self._runs.pop(run)
            try:
                outcome: RoleEnd = ray.get(run)
                handle.write(outcome.said)
                handle.end(outcome)
                if outcome.unlike is not None:
                    self._unlike.add(outcome.unlike)
            except exceptions.RayError as error:
                self._require_node()
                handle.lose(error)
            else:
                ray.kill(handle.actor)  # Its process has no more to do, and the name is free.

    def _require_node(self) -> None:
        if self._core.node not in {node["NodeID"] for node in cluster_nodes.alive()}:
            raise NodeLost

    def _take_signs(self) -> None:
        if not self._asked:
            return
        answered, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        for answer in answered:
            start, handle = self._asked.pop(answer)
            try:
                signs: Signs = ray.get(answer)
            except exceptions.RayError as error:
                if not handle.has_run:  # Else how it ended is told by its run.
                    self._require_node()
                    handle.lose(error)
                continue
            handle.pid, handle.node = signs.pid, signs.node
            handle.is_here = signs.node == self._cluster.node
            handle.write(signs.said)
            handle.is_shown = signs.shown
            if not handle.running:
                continue
            if not handle.has_run:
                self._begin(start, handle)
            if not signs.shown:
                self._board.put(start.row, signs.alive, signs.loop)


def start(
    deployment: Deployment,
    cluster: Cluster,
    core: Seat,
    workspace: pathlib.Path,
    logs: pathlib.Path,
    say: Say = lambda line: None,
) -> Supervisor:
    """Prepares a deployment; its roles start with the supervisor's first `poll`.

    That raises `NodeLost` once the core's is gone.
    """
    board = heartbeat.Board(workspace / heartbeat.FILE, len(deployment.plans))
    launcher = RayLauncher(cluster, core, workspace, logs, board)
    meetings: dict[str, Rendezvous] = {}
    members: list[Member] = []
    for label, plans in deployment.groups().items():
        for index, plan in enumerate(plans):
            name = name_of(deployment, label, index)
            row = len(members)
            # Kept by the process that launches, for all incarnations of the role.
            payload = ray.put(ray.cloudpickle.dumps(_filled_in(plan, deployment, cluster, core)))
            started = Start(
                name,
                row,
                payload,
                _options(plan, index, deployment, cluster, core),
                plan.label not in ANYWHERE,
                _answers(plan),
            )
            begin = functools.partial(launcher.start, started, plan.settings)
            if gang := plan.settings.gang:
                first = gang not in meetings
                meeting = meetings.setdefault(gang, Rendezvous(functools.partial(_ports, core)))
                begin = functools.partial(_start_in_gang, launcher, started, plan, meeting, first)
            members.append(Member(name, row, plan.settings, begin))
    return Supervisor(launcher, board, members, say)


def name_of(deployment: Deployment, label: str, index: int = 0) -> str:
    """Of a role, as its label and number among those of the label."""
    return f"{label}/{index}" if len(deployment.groups()[label]) > 1 else label


def _start_in_gang(
    launcher: RayLauncher, start: Start, plan: RolePlan, meeting: Rendezvous, first: bool
) -> RayHandle:
    return launcher.start(start, meeting.settings(plan.settings, first))


def _ports(core: Seat) -> tuple[str, str] | None:
    """Two of the core's node that are free; None: the whole learner is there."""
    if cluster_nodes.of_group(core.group) == {core.node}:
        return None
    find = _remote(num_cpus=0)(addresses.free_ports)
    there = find.options(scheduling_strategy=cluster_nodes.affinity(core.node))
    try:
        host = cluster_nodes.address_of(core.node)
        first, second = ray.get(there.remote(2, host), timeout=_PORT_SECONDS)
    except (exceptions.RayError, KeyError) as error:
        raise NodeLost from error
    return f"{host}:{first}", f"{host}:{second}"


def _filled_in(plan: RolePlan, deployment: Deployment, cluster: Cluster, core: Seat) -> Any:
    """The constructor, and its arguments with what the references stand for."""
    proxies = {"calls": lambda remote: remote, "board": RayBoard}
    proxies["replay"] = functools.partial(
        RayReplay,
        num_envs=deployment.experiment.builder.num_envs,
        num_writers=deployment.roles.actors,
    )

    def fill_in(leaf: Any) -> Any:
        if not isinstance(leaf, Reference):
            return leaf
        remote = RayRemote(
            cluster.run,
            core.incarnation,
            name_of(deployment, leaf.label, leaf.index),
            direct=leaf.label == "inference",  # Which is called at every step.
        )
        return proxies[leaf.proxy](remote)

    arguments = jax.tree.map(fill_in, dict(plan.arguments), is_leaf=_is_plain)
    return plan.constructor, arguments


def _is_plain(value: Any) -> bool:
    """True if no references lie in it."""
    return not isinstance(value, dict | list | tuple)


def _options(
    plan: RolePlan, index: int, deployment: Deployment, cluster: Cluster, core: Seat
) -> dict[str, Any]:
    """Of the actor of a role: what it takes of which node, and how many calls it answers.

    With none of them its main thread is free for the role (`RoleHost.run_alone`).
    """
    taken = bundle(plan, deployment, cluster.actor_cpus)
    options: dict[str, Any] = {"num_cpus": taken["CPU"]}
    if "GPU" in taken:
        options["num_gpus"] = taken["GPU"]
    if plan.label in ANYWHERE:
        options["scheduling_strategy"] = "SPREAD"
    elif plan.label == "learner":
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
            core.group, placement_group_bundle_index=index
        )
    else:
        options["scheduling_strategy"] = cluster_nodes.affinity(core.node)
    threads = 2 * deployment.roles.actors + 8 if plan.serves_replay else plan.threads
    return {**options, "max_concurrency": threads, "max_restarts": 0}


def _answers(plan: RolePlan) -> bool:
    return plan.serves_replay or plan.threads > 0


def bundles(deployment: Deployment, actor_cpus: float) -> list[cluster_nodes.Bundle]:
    """Returns what each role takes of its node."""
    return [bundle(plan, deployment, actor_cpus) for plan in deployment.plans]


def bundle(plan: RolePlan, deployment: Deployment, actor_cpus: float) -> cluster_nodes.Bundle:
    """Returns what a role takes of its node."""
    cpus = {"actor": actor_cpus, "learner": _LEARNER_CPUS}
    taken = {"CPU": cpus.get(plan.label, 0.0)}
    if plan.label == "learner" and deployment.roles.learner_gpus is not None:
        taken["GPU"] = float(deployment.roles.learner_gpus)
    elif plan.settings.accelerator:
        names = dict(plan.settings.environment).get("CUDA_VISIBLE_DEVICES", "0")
        taken["GPU"] = float(len(names.split(",")))
    return taken


def _end(error: exceptions.RayError) -> RoleEnd:
    """Returns how an actor ended, by what Ray says: it was not made, or ended from outside."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not isinstance(error, exceptions.RayActorError) or "creation task" in lines[0]:
        return RoleEnd(1, lines[-1][:300])
    whole = "node" if "node has died" in str(error) else "process"
    return RoleEnd(-signal.SIGKILL, f"its {whole} was ended from outside")
