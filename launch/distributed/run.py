"""Conducts a deployment from its first role to its result, whatever engine keeps it running."""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from .. import lifecycle
from ..errors import RunError
from ..files.checkpoints import Store
from ..files.result import Result
from ..logging import report
from ..logging.monitor import Numbers
from .addresses import LOOPBACK
from .deployment import Deployment, Say
from .roles.ledger import DONE, TRAIN
from .roles.rpc import Remote, Unreachable
from .supervision.supervisor import RoleError, Supervisor
from .workspace import workspace_of

_POLL_SECONDS = 0.05
_LOOK_SECONDS = 0.25
_STOP_SECONDS = 15.0


class Running(Protocol):
    """The roles of a deployment, as an engine keeps them running."""

    @property
    def counter(self) -> Remote:
        """The role that keeps the ledger."""

    def poll(self) -> None:
        """Looks after every role once. Called some twenty times a second.

        Raises:
          RoleError: if a role failed that is not started again.
        """

    def starting(self) -> list[str]:
        """Names of the roles that are not at work yet."""

    def went_back(self) -> Mapping[str, Any] | None:
        """Counters of the checkpoint from which all have begun again, told once; None: they have
        not."""


class Supervised(NamedTuple):
    """`Running`, where one supervisor has all roles."""

    counter: Remote
    supervisor: Supervisor

    def poll(self) -> None:
        self.supervisor.poll()

    def starting(self) -> list[str]:
        return self.supervisor.starting()

    def went_back(self) -> None:
        """Roles are started again one by one."""


class Engine(Protocol):
    """An engine: starts the roles of a deployment where they belong, and again where they fail."""

    kind: str
    """Of launch."""
    name: str
    """One of `roles.ENGINES`."""

    def start(
        self, workspace: pathlib.Path, logs: pathlib.Path, say: Say
    ) -> contextlib.AbstractContextManager[Running]:
        """Roles that run while it lasts.

        Args:
          workspace: an empty folder for this launch.
          logs: folder of the roles' log files.
          say: told what happens, a line at a time.
        """


def conduct(
    deployment: Deployment,
    engine: Engine,
    reporter: report.Reporter | None = None,
    request: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Result:
    """Runs a deployment to its end.

    SIGINT and SIGTERM have the learner save a checkpoint and end the run, where this is the main
    thread.

    Args:
      deployment: of an experiment (see `deploy`).
      engine: starts its roles.
      reporter: where words go; None: to standard output, where there is to be `progress`.
      request: what `config.json` shall say; None: what can be said of the experiment.
      progress: whether to show how it goes.

    Returns:
      What was also written to `result.json`.

    Raises:
      ValueError: if the run cannot begin as asked (often its subclass `RequestError`).
      RunError: if a role failed and could not be started again; the message names it.
      Interrupted: if a signal stopped it.
    """
    experiment = deployment.experiment
    with lifecycle.entered(experiment, deployment.directory, reporter, progress) as run:
        resumed = deployment.resumed
        if resumed is not None:
            run.reopen(lambda: resumed)
        conductor = _Conductor(deployment, run)
        groups = deployment.groups().items()
        roles = ", ".join(f"{len(group)} {group[0].plural(len(group))}" for _, group in groups)
        max_size = deployment.replay_spec.max_size if experiment.acts else None
        run.begin(
            request,
            max_size,
            conductor.numbers,
            f" ({roles})",
            engine.kind,
            deployment.roles.given(),
            engine.name,
            deployment.remarks,
        )
        listen = deployment.roles.listen
        if listen != LOOPBACK:
            run.monitor.line(
                f"warning: the run listens on {listen}; whoever can connect to it can run code on "
                "this machine in your name"
            )
        with (
            workspace_of(experiment.builder.name) as workspace,
            engine.start(workspace, run.directory.logs, run.monitor.line) as running,
        ):
            counts, observed = conductor.conduct(running)
        target = deployment.replay_spec.samples_per_insert
        return run.finish(
            engine.kind,
            counts,
            (target, observed),
            devices=conductor.devices(),
            actors=deployment.roles.actors if experiment.acts else 0,
            learner_hosts=deployment.roles.learner_hosts,
            engine=engine.name,
        )


class _Conductor:
    """Watches the ledger and the roles until the run is done."""

    def __init__(self, deployment: Deployment, run: lifecycle.RunLifecycle):
        self._budget, self._run = deployment.experiment.budget, run
        self._clock = deployment.experiment.clock
        self._seen: dict[str, Any] = {
            "actor_steps": run.before.get("actor_steps", 0),
            "learner_steps": run.before.get("learner_steps", 0),
            "episodes": run.before.get("episodes", 0),
            "phase": TRAIN,
            "recent": [],
            "learner": {},
        }
        self._results = run.before.get("evaluations", 0)
        self._store = Store(run.directory.checkpoints)
        self._saved = self._newest()
        self._training_since: float | None = None
        self._begun = False

    def numbers(self) -> Numbers:
        """Of training, from the learner's last status."""
        status = self._seen["learner"]
        replay = status.get("replay", {})
        observed = replay.get("samples_per_insert", 0.0)
        return Numbers(replay.get("size", 0), observed, status.get("metrics", {}))

    def devices(self) -> Mapping[str, str]:
        """Platforms of the actors and of the learner, as they said."""
        actor = self._run.experiment.actor_device
        host = "cpu" if actor == "auto" else actor
        return {"actor": host, "learner": self._seen["learner"].get("device", "cpu")}

    def conduct(self, running: Running) -> tuple[Mapping[str, Any], float]:
        """Goes on until the run is done; counts, and samples per insert as observed."""
        run, look_at, stop_by = self._run, 0.0, float("inf")
        try:
            while self._seen["phase"] != DONE:
                running.poll()
                now = time.monotonic()
                if run.stop.requested and stop_by == float("inf"):
                    stop_by = now + _STOP_SECONDS
                if now >= stop_by:
                    break
                if now >= look_at:
                    look_at = now + _LOOK_SECONDS
                    self._look(running)
                time.sleep(_POLL_SECONDS)
        except RoleError as error:
            raise RunError(
                f"{error} (see {run.directory.logs}/{error.role.replace('/', '-')}.log); "
                f"stopped at {self._steps:,} {self._clock.words}; go on from the newest "
                f"checkpoint with `troupe resume {run.directory.path}`."
            ) from error
        run.monitor.write_row(self._counts(), self._seen["recent"])
        self._look_for_checkpoint()
        if self._seen["phase"] == DONE:
            run.stopped(self._steps)
        else:
            late = f"; the learner saved no checkpoint within {_STOP_SECONDS:g} s"
            run.stopped(self._steps, f"{late}, the one before it stands")
        return self._counts(), self.numbers().samples_per_insert

    def _look(self, running: Running) -> None:
        """Asks the counter where the run is; one that does not answer is asked again later."""
        run = self._run
        if (counters := running.went_back()) is not None:
            self._results = counters.get("evaluations", 0)
            run.monitor.go_back(counters)
        counter = running.counter
        if not self._begun:
            run.monitor.starting(running.starting())
        try:
            if run.stop.requested or run.ending is not None:
                counter.request_stop()
            counter.spend(self._counts()["wall_seconds"], run.train_seconds)
            seen = counter.look(self._results)
            notes = counter.take_notes()
        except Unreachable:
            return
        now = time.perf_counter()
        if self._training_since is not None:
            run.train_seconds += now - self._training_since
        self._begun = self._begun or seen[self._clock.name] > self._steps
        self._training_since = now if self._begun and seen["phase"] == TRAIN else None
        self._seen = seen
        for line in notes:
            run.monitor.line(line)
        for summary in seen["evaluations"]:
            run.monitor.evaluated({**self._counts(), **summary["counts"]}, summary)
            self._results += 1
        self._look_for_checkpoint()
        if seen["learner"] and self._begun:
            run.monitor.look(self._counts(), seen["recent"], self._budget)

    @property
    def _steps(self) -> int:
        """Of the run's clock."""
        return self._seen[self._clock.name]

    def _look_for_checkpoint(self) -> None:
        """Tells of a checkpoint that the learner has written since the last look."""
        before, self._saved = self._saved, self._newest()
        if self._saved is not None and self._saved != before:
            self._run.saved(self._saved, self._counts())

    def _newest(self) -> pathlib.Path | None:
        return next(reversed(self._store.paths()), None)

    def _counts(self) -> dict[str, Any]:
        seen = self._seen
        return self._run.counts(seen["actor_steps"], seen["learner_steps"], seen["episodes"])
