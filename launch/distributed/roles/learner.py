"""The learner: steps at the pace of the replay, publishes, and saves the run's checkpoints."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax

from ....agents.variables.client import MeshVariables
from ... import devices
from ...evaluation.loading import restore_learner
from ...experiment import Partition
from ...files.checkpoints import Store
from ...files.replay_files import ReplayFiles
from ...files.writer import CheckpointWriter
from ...local import finite
from ...local.saver import data_counters, keeps_replay, resume_data
from ..gang import protocol
from ..supervision import heartbeat, role
from . import rpc
from .ledger import DONE, DRAIN, SAVE, TRAIN
from .replay_service import ReplayService
from .variable_board import VariableBoard

if TYPE_CHECKING:
    from ....agents.interfaces import ManagedLearner
    from ....agents.replay.interface import Replay
    from ....agents.variables.publisher import Publisher
    from ...factory import ComponentFactory

_REPORT_SECONDS = 0.25
_DRAINED_SECONDS = 2.0


class LearnerRole:
    """The one learner of a program; where it is a gang of processes, the first of them."""

    def __init__(
        self,
        factory: ComponentFactory,
        checkpoints: str,
        counter: rpc.Remote,
        board: VariableBoard,
        service: ReplayService | None,
        replay_folder: str,
        hosts: int = 1,
        spreads: bool = False,
    ):
        """Connects to the others; nothing is made yet.

        Args:
          factory: of the learner.
          checkpoints: folder of the run's checkpoints; the learner goes on from the newest.
          counter: keeps the ledger.
          board: takes the variables.
          service: the replay; None: it learns from data.
          replay_folder: where it writes its own part of checkpoints.
          hosts: processes of the learner; see `follower` for the others.
          spreads: True if all who read variables spread them over devices; then each process of
            the learner publishes what its own devices hold.
        """
        self._spreads = spreads
        self._factory, self._experiment, self._spec = factory, factory.experiment, factory.spec
        self._incarnation = role.current().incarnation
        kept = self._experiment.checkpointing
        self._store = Store(checkpoints, kept.keep, self._incarnation, kept.copies)
        self._writer = CheckpointWriter(self._store)
        self._counter, self._board, self._service = counter, board, service
        self._files = ReplayFiles(replay_folder, service.checkpoint) if service else None
        self._clock = factory.experiment.clock.name
        self._gang = protocol.of(hosts)
        self._offered: int | None = None
        self._notes: list[str] = []
        self._status: dict[str, Any] = {"drained": False, "saved": False}

    def run(self) -> None:
        self._gang.join()
        checkpoint = self._store.newest(self._notes.append, needs=("learner",))
        hosts = self._gang.size
        self._replay = make_replay(self._factory, self._service, hosts)
        self._learner, self._platform = make_learner(
            self._factory, self._replay, hosts, self._notes.append
        )
        self._metrics = finite.MetricsWatch(self._learner, self._notes.append)
        if checkpoint is not None:
            self._gang.say(protocol.FROM, checkpoint.path.name)
            restore_learner(checkpoint, self._learner)
            resume_data(self._replay, self._learner)
        self._publisher = make_publisher(self._board, self._spreads, 0, hosts)
        self._names = list(self._learner.variable_names)
        self._source = source_of(self._learner, self._spreads)
        self._on_published = getattr(self._replay, "on_published", lambda: None)
        self._offer()
        self._saved_at, self._saved_steps = time.monotonic(), 0
        if checkpoint is None:
            self._save(begins=True)
        elif self._gang.size > 1:
            self._gang.compare(self._cut())
        try:
            self._learn()
            self._gang.leave()
        finally:
            self._publisher.close()
            self._replay.close()

    def _learn(self) -> None:
        learner, replay = self._learner, self._replay
        batches = self._experiment.builder.steps_per_dispatch
        paced = self._experiment.builder.make_replay_spec(self._spec).samples_per_insert is not None
        patience = _DRAINED_SECONDS if self._files else 0.0  # Data sends nothing more.
        phase, report_at, last_batch = TRAIN, 0.0, time.monotonic()
        while not role.pause(0.0):
            now = time.monotonic()
            if now >= report_at:
                phase, steps = self._report()
                report_at = now + _REPORT_SECONDS
                self._writer.take()
                if phase == TRAIN and self._save_is_due(steps):
                    self._save()
            if self._publisher.wanted and learner.version != self._offered:
                self._offer()
            if phase in (TRAIN, DRAIN) and not self._status["drained"]:
                has_batch = replay.can_sample(batches) and self._gang.ready()
                if has_batch and (paced or phase == TRAIN):
                    self._gang.say(protocol.STEP)
                    learner.step()
                    last_batch = now
                elif phase == DRAIN and now - last_batch > patience:
                    self._finish()
                    report_at = 0.0
                elif replay.wait(0.02):
                    self._gang.wait(0.02)
            elif phase == SAVE and not self._status["saved"]:
                self._save_last()
                self._status["saved"] = True
                report_at = 0.0
            elif phase == DONE:
                return
            else:
                role.pause(0.05)

    def _finish(self) -> None:
        """Publishes and saves what was learned."""
        self._offer()
        while not self._publisher.flush(1.0):
            rpc.check_stop()
            self._check_publisher()
        self._save_last()
        self._status["drained"] = True

    def _offer(self) -> None:
        """Has the newest variables published."""
        if self._offered == self._learner.version:
            return
        self._offered, number = self._learner.version, None
        if self._spreads and self._gang.size > 1:
            number = self._publisher.reserve()
        self._gang.say(protocol.GATHER, "" if number is None else str(number))
        variables = self._source.get_variables(self._names)
        named = dict(zip(self._names, variables, strict=True))
        self._publisher.offer(named, number, self._on_published())

    def _report(self) -> tuple[str, int]:
        self._check_publisher()
        replay = self._replay
        while self._notes:
            rpc.insist(self._counter.note, self._notes[0])
            self._notes.pop(0)
        status = {
            **self._status,
            "steps": self._learner.steps,
            "device": self._platform,
            "version": self._publisher.version,
            "metrics": self._metrics(),
            "replay": {
                "size": len(replay),
                "inserted": replay.inserted,
                "sampled": replay.sampled,
                "samples_per_insert": replay.observed_samples_per_insert,
            },
        }
        return rpc.insist(self._counter.learner, status)

    def _check_publisher(self) -> None:
        if self._publisher.error is not None:
            raise self._publisher.error

    # Checkpoints.

    def _save_is_due(self, steps: int) -> bool:
        """True if a checkpoint is to begin, at so many steps of the run's clock.

        By the seconds none is due while another is being written.
        """
        settings = self._experiment.checkpointing
        if time.monotonic() - self._saved_at >= settings.every_seconds and not self._writer.busy:
            return True
        return settings.every_steps is not None and (
            steps - self._saved_steps >= settings.every_steps
        )

    def _save_last(self) -> None:
        """Saves, and sees to it that the address of copies has it too."""
        self._save()
        self._wait_for_save()
        while not self._store.copied(1.0):
            heartbeat.beat()

    def _wait_for_save(self) -> None:
        """Waits for the checkpoint that is being written, if any, giving signs of life."""
        while self._writer.busy:
            self._writer.wait(1.0)
            heartbeat.beat()
        self._writer.take()

    def _save(self, begins: bool = False) -> None:
        """Begins a checkpoint of what belongs together: learner, ledger and replay, between two
        steps. Waits for the one before.

        Args:
          begins: the run has just begun, and nothing is in its replay. Not asked of the replay's
            numbers, which are those of a moment ago, or none where it did not answer.
        """
        self._wait_for_save()
        ledger = rpc.insist(self._counter.save)
        state = self._cut()
        heartbeat.beat()
        sums = None
        if self._files and not begins and keeps_replay(self._experiment, self._replay):
            sums = self._files.save(self._notes.append)
        heartbeat.beat()
        counters = {
            **ledger,
            "learner_steps": self._learner.steps,
            **({} if self._incarnation is None else {"incarnation": self._incarnation}),
            **data_counters(self._replay),
        }
        steps = self._learner.steps

        def check() -> None:
            self._gang.compare(state)
            finite.require(state, steps)

        self._writer.start(
            {"learner": state},
            counters,
            self._experiment.identity(),
            check=check,
            more=lambda: {"replay": None if sums is None else sums()},
            others=self._gang.saving,
            then=functools.partial(self._files.prune, self._store) if self._files else None,
        )
        self._saved_at, self._saved_steps = time.monotonic(), counters[self._clock]

    def _cut(self) -> Any:
        """A copy of the learner's state, of which every process of its gang makes its part."""
        self._gang.say(protocol.CUT)
        return self._writer.freeze({"learner": self._learner.live_state()})["learner"]


def make_replay(
    factory: ComponentFactory, service: ReplayService | None, hosts: int, rank: int = 0
) -> Replay:
    """The replay of one process of a learner of `hosts`, the one of `rank`: it draws its share of
    each batch from it, or from the experiment's data where no replay is served."""
    if service is None:
        return factory.offline_replay(hosts, rank)
    return factory.replay(factory.num_streams, service.reader(hosts, rank))


def make_publisher(board: VariableBoard, spreads: bool, rank: int, hosts: int) -> Publisher:
    """The publisher of one process of a learner of `hosts`: of whole versions or, where who reads
    them spreads them, of this process's part of each."""
    part, parts = (rank, hosts) if spreads else (0, 1)
    return board.publisher(part, parts, spreads=spreads)


def source_of(learner: ManagedLearner, spreads: bool) -> Any:
    """The variables of a learner: as its mesh holds them, where it has one and who reads them
    spreads them, else on one device."""
    partitioned = getattr(learner, "plan", None) is not None
    return MeshVariables(learner) if spreads and partitioned else learner


def make_learner(
    factory: ComponentFactory, replay: Replay, hosts: int, say: Callable[[str], None]
) -> tuple[ManagedLearner, str]:
    """The learner of one process, and the platform that it computes on.

    Args:
      factory: of the learner.
      replay: this process's proxy of the replay.
      hosts: processes of the learner, joined already. Where the experiment has no partition, each
        of their devices takes its share of the batch.
      say: told on which device it is quickest, where there was a choice.

    Raises:
      RequestError: if the process has no device of the kind that it is to use.
    """
    partition = factory.experiment.partition
    if hosts > 1 and partition is None:
        from .... import partitioning

        mesh = partitioning.Mesh({"data": jax.device_count()})
        partition = Partition(mesh, partitioning.parse_schedule("batch:data"))
    if partition is not None:
        name = factory.experiment.learner_device
        platform = next(iter(devices.find(name, "learner")))
        return factory.learner(replay, partition), platform
    samples = replay.sample_shapes(factory.builder.steps_per_dispatch)
    chosen = devices.choose(factory, samples)
    if chosen.note:
        say(chosen.note)
    return factory.learner(replay, device=chosen.learner), chosen.to_json()["learner"]
