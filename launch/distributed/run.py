"""Conducts a program from its first role to its result: what one process does around its loop."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import tempfile
import time
import types
from collections.abc import Iterator, Mapping
from typing import Any

from ...agents.replay.items import ReplaySpec
from ...agents.variables.board import shared_folder
from .. import signals
from ..errors import Interrupted, RequestError, RunError
from ..experiment import Experiment
from ..files.directory import RunDirectory
from ..files.result import Result, versions
from ..telling import metrics, report
from ..telling.monitor import Monitor
from . import addresses
from .engines.launchpad import launcher, servers
from .engines.launchpad.program import Program, make_program
from .roles.calls import Unreachable
from .roles.ledger import DONE, TRAIN
from .supervision.supervisor import RoleError, Supervisor

_POLL_SECONDS = 0.05
_LOOK_SECONDS = 0.25
_STOP_SECONDS = 15.0


def launch(
    program: Program,
    kind: str = "processes",
    *,
    reporter: report.Reporter | None = None,
    request: Mapping[str, Any] | None = None,
) -> Result:
    """Launches the program of an experiment on this machine and waits for its end.

    SIGINT and SIGTERM have the learner save a checkpoint and end the run, where this is the main
    thread.

    Args:
      program: of `make_program`.
      kind: "threads" or "processes".
      reporter: where words go; None: nowhere but into the log file.
      request: what `config.json` shall say; None: the experiment's identity and budget.

    Returns:
      What was also written to `result.json`.

    Raises:
      ValueError: if the run cannot begin as asked (often its subclass `RequestError`).
      RunError: if a role failed and could not be started again; the message names it.
      Interrupted: if a signal stopped it.
    """
    launcher.check(program, kind)
    reporter = reporter or report.Silent()
    try:
        return _launch(program, kind, reporter, request)
    except OSError as error:
        message = f"{program.directory}: {error.strerror or error}"
        raise RunError(f"{message}; the newest checkpoint in it, if any, is intact.") from error


def _launch(
    program: Program, kind: str, reporter: report.Reporter, request: Mapping[str, Any] | None
) -> Result:
    began = time.perf_counter()
    experiment = program.experiment
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(signals.caught())
        directory = stack.enter_context(RunDirectory(program.directory))
        _take(program, directory)
        default = {**experiment.identity(), "steps": experiment.num_actor_steps}
        directory.write(directory.config, request or default)
        log = stack.enter_context(report.Logged(reporter, directory.logs / "main.log"))
        log.line(_first_line(program))
        if program.listen != addresses.LOOPBACK:
            log.line(
                f"warning: the run listens on {program.listen}; whoever can connect to it can run "
                "code on this machine in your name"
            )
        rows = stack.enter_context(_rows(program, directory))
        workspace = stack.enter_context(_workspace(experiment.builder.name))
        supervisor = launcher.start(
            program, kind, workspace, directory.logs, log.line, program.listen
        )
        stack.callback(supervisor.stop)
        if kind == "threads":
            import reverb  # noqa: F401 - the servers' libraries must be there to be kept local.

            stack.enter_context(servers.kept_to(program.listen))
        conductor = _Conductor(program, kind, directory, supervisor, rows, log, stop, began)
        return conductor.run()


def run(
    experiment: Experiment,
    out: str | os.PathLike[str],
    kind: str = "processes",
    roles: Mapping[str, Any] | None = None,
    *,
    resume: bool = False,
    reporter: report.Reporter | None = None,
    request: Mapping[str, Any] | None = None,
) -> Result:
    """Makes the program of an experiment and launches it.

    Args:
      experiment: what is run.
      out: directory of the run; new or empty, or with `resume` that of an earlier run.
      kind: "threads" or "processes".
      roles: fields of `program.Roles`.
      resume: go on from the newest complete checkpoint of `out`.
      reporter: where words go; None: nowhere but into the log file.
      request: what `config.json` shall say; None: the experiment's identity and budget.

    Returns, Raises: as `launch`.
    """
    launcher.check_kind(kind)
    reporter = reporter or report.Silent()

    def warn(damage: str) -> None:
        reporter.line(f"warning: {damage} The one before it is taken.")

    program = make_program(experiment, out, resume=resume, warn=warn, **(roles or {}))
    return launch(program, kind, reporter=reporter, request=request)


def _take(program: Program, directory: RunDirectory) -> None:
    if not program.resume:
        directory.create()
        return
    directory.reopen()
    if program.resumed is not None and directory.result.exists():
        done = program.resumed.counters["actor_steps"]
        if done >= program.experiment.num_actor_steps:
            raise RequestError(
                f"the run in {directory.path} is complete: it has spent its budget of "
                f"{program.experiment.num_actor_steps} actor steps; give more with --steps."
            )
    directory.result.unlink(missing_ok=True)


def _first_line(program: Program) -> str:
    experiment = program.experiment
    roles = ", ".join(
        f"{len(nodes)} {label}" + ("s" if len(nodes) > 1 and label != "variables" else "")
        for label, nodes in program.groups.items()
    )
    what = f"{experiment.builder.name} on {experiment.env}, seed {experiment.seed}"
    where = f"in {program.directory}"
    if program.resumed is not None:
        steps = program.resumed.counters["actor_steps"]
        where = f"goes on {where} from {program.resumed.path.name} at {steps:,} actor steps"
    return f"{what}, {where} ({roles})"


def _rows(program: Program, directory: RunDirectory) -> metrics.MetricsWriter:
    """The rows of the run, without those of steps that are taken again."""
    steps = program.resumed.counters["actor_steps"] if program.resumed else 0
    kept = 0
    if steps and directory.metrics.exists():
        with open(directory.metrics, "rb") as file:
            for line in file:
                if not line.endswith(b"\n") or json.loads(line)["actor_steps"] > steps:
                    break
                kept += len(line)
    return metrics.MetricsWriter(directory.metrics, keep_bytes=kept, actor_steps=steps)


@contextlib.contextmanager
def _workspace(name: str) -> Iterator[pathlib.Path]:
    _remove_abandoned()
    folder = shared_folder(f"{os.getpid()}-{name}")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned() -> None:
    """Removes the workspaces of launches that were killed, which could not do it."""
    for parent in ("/dev/shm", tempfile.gettempdir()):
        for folder in pathlib.Path(parent).glob("troupe-*-*"):
            pid = folder.name.split("-")[1]
            if pid.isdigit() and not pathlib.Path("/proc", pid).exists():
                shutil.rmtree(folder, ignore_errors=True)


class _Conductor:
    """Watches the ledger and the roles until the run is done."""

    def __init__(
        self,
        program: Program,
        kind: str,
        directory: RunDirectory,
        supervisor: Supervisor,
        rows: metrics.MetricsWriter,
        log: report.Logged,
        stop: signals.Stop,
        began: float,
    ):
        self._program, self._kind, self._directory = program, kind, directory
        self._supervisor, self._log, self._stop = supervisor, log, stop
        self._began = began
        before = program.resumed.counters if program.resumed else {}
        self._wall_before = before.get("wall_seconds", 0.0)
        self._train_seconds = before.get("train_seconds", 0.0)
        self._seen: dict[str, Any] = {
            "actor_steps": before.get("actor_steps", 0),
            "learner_steps": before.get("learner_steps", 0),
            "episodes": before.get("episodes", 0),
            "phase": TRAIN,
            "recent": [],
            "learner": {},
        }
        self._results = before.get("evaluations", 0)
        self._counter = program.counter.dereference()
        self._far = _FarParts(program.replay_spec)
        self._monitor = Monitor(self._far, rows, log)  # type: ignore[arg-type]
        self._acting_since: float | None = None

    def run(self) -> Result:
        look_at, stop_by = 0.0, float("inf")
        try:
            while self._seen["phase"] != DONE:
                self._supervisor.poll()
                now = time.monotonic()
                if self._stop.requested and stop_by == float("inf"):
                    stop_by = now + _STOP_SECONDS
                if now >= stop_by:
                    break
                if now >= look_at:
                    look_at = now + _LOOK_SECONDS
                    self._look()
                time.sleep(_POLL_SECONDS)
        except RoleError as error:
            message = (
                f"{error} (see {self._directory.logs}/{error.role.replace('/', '-')}.log); "
                f"stopped at {self._seen['actor_steps']:,} actor steps; go on from the newest "
                f"checkpoint with `troupe resume {self._directory.path}`."
            )
            self._log.line(message)
            raise RunError(message) from error
        self._monitor.write_row(self._counts(), self._seen["recent"])
        if self._stop.signal_number is not None:
            self._interrupted(self._stop.signal_number)
        return self._finish()

    def _look(self) -> None:
        """Asks the counter where the run is; one that does not answer is asked again later."""
        counter = self._counter
        try:
            if self._stop.requested:
                counter.request_stop()
            counter.spend(self._counts()["wall_seconds"], self._train_seconds)
            seen = counter.look(self._results)
            notes = counter.take_notes()
        except Unreachable:
            return
        now = time.perf_counter()
        if self._acting_since is not None:
            self._train_seconds += now - self._acting_since
        begun = self._acting_since is not None or seen["actor_steps"] > self._seen["actor_steps"]
        self._acting_since = now if begun and seen["phase"] == TRAIN else None
        self._seen = seen
        self._far.update(seen["learner"])
        for line in notes:
            self._log.line(line)
        for summary in seen["evaluations"]:
            counts = {**self._counts(), **summary["counts"]}
            counts["actor_steps"] = summary["actor_steps"]
            self._monitor.evaluated(counts, summary)
            self._results += 1
        if seen["learner"]:
            budget = self._program.experiment.num_actor_steps
            self._monitor.look(self._counts(), seen["recent"], budget)

    def _counts(self) -> dict[str, Any]:
        return {
            "actor_steps": self._seen["actor_steps"],
            "learner_steps": self._seen["learner_steps"],
            "episodes": self._seen["episodes"],
            "wall_seconds": round(self._wall_before + time.perf_counter() - self._began, 3),
            "train_seconds": round(self._train_seconds, 3),
        }

    def _interrupted(self, signal_number: int) -> None:
        steps = self._seen["actor_steps"]
        advice = f"go on with `troupe resume {self._directory.path}`."
        if self._seen["phase"] == DONE:
            message = f"stopped at {steps:,} actor steps with a checkpoint saved; {advice}"
        else:
            message = (
                f"stopped at {steps:,} actor steps; the learner saved no checkpoint within "
                f"{_STOP_SECONDS:g} s, the one before it stands; {advice}"
            )
        raise Interrupted(signal_number, message)

    def _finish(self) -> Result:
        experiment, counts = self._program.experiment, self._counts()
        target = experiment.evaluation.target_return
        seconds = max(self._train_seconds, 1e-9)
        evaluation = metrics.evaluations(self._directory.metrics)
        result = Result(
            agent=experiment.builder.name,
            env=experiment.env,
            seed=int(experiment.seed),
            launch=self._kind,
            actors=self._program.num_actors,
            learner_hosts=len(self._program.groups["learner"]),
            mesh=None if experiment.partition is None else str(experiment.partition.mesh),
            **counts,
            actor_steps_per_second=counts["actor_steps"] / seconds,
            learner_steps_per_second=counts["learner_steps"] / seconds,
            samples_per_insert={
                "target": self._far.replay.spec.samples_per_insert,
                "observed": self._far.replay.observed_samples_per_insert,
            },
            evaluation=evaluation,
            versions=versions(),
            target_return=target,
            reached=None if target is None else evaluation[-1]["mean"] >= target,
        )
        self._directory.write(self._directory.result, result.to_json())
        return result


class _FarParts:
    """What a `Monitor` looks at, from the learner's last status."""

    def __init__(self, spec: ReplaySpec):
        self._status: Mapping[str, Any] = {}
        self.replay = _FarReplay(spec)
        self.learner = types.SimpleNamespace(metrics=lambda: self._status.get("metrics", {}))

    def update(self, status: Mapping[str, Any]) -> None:
        self._status = status
        self.replay.status = status.get("replay", {})


class _FarReplay:
    def __init__(self, spec: ReplaySpec):
        self.spec = spec
        self.status: Mapping[str, Any] = {}

    def __len__(self) -> int:
        return self.status.get("size", 0)

    @property
    def observed_samples_per_insert(self) -> float:
        return self.status.get("samples_per_insert", 0.0)
