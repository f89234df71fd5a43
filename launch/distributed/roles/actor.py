"""Actors: environments, a policy, and a writer to the replay."""

from __future__ import annotations

import secrets
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ... import devices, seeds
from ...errors import RunError
from ...evaluation import opponents
from ...local.loop import Loop
from ...local.self_play import OpponentChoice
from ...signals import Stop
from ..supervision import heartbeat, role
from . import rpc
from .inference import RemotePolicy
from .ledger import DONE, REPLACED, TRAIN

if TYPE_CHECKING:
    from ...factory import ComponentFactory
    from .replay_service import ReplayService
    from .variable_board import VariableBoard

_REPORT_SECONDS = 0.25


class ActorRole:
    """Acts in its environments as far as the ledger grants."""

    def __init__(
        self,
        factory: ComponentFactory,
        index: int,
        counter: rpc.Remote,
        service: ReplayService,
        board: VariableBoard | None,
        inference: rpc.Remote | None = None,
    ):
        """Makes nothing yet.

        Args:
          factory: of the actor.
          index: its number among the actors.
          counter: keeps the ledger.
          service: the replay.
          board: has the variables; None: it asks `inference`, and does not play against itself.
          inference: the server that chooses its actions.
        """
        self._factory, self._experiment = factory, factory.experiment
        self._index, self._counter = index, counter
        self._service, self._board, self._inference = service, board, inference

    def run(self) -> None:
        name = f"actor/{self._index}"
        process, start = secrets.token_hex(8), role.current().start
        incarnation = rpc.insist(self._counter.enter, name, process, start)
        _require_place(name, incarnation >= 0)
        counts = rpc.insist(self._counter.look)
        factory, index = self._factory, self._index + 1
        num_envs = factory.builder.num_envs
        environment = self._experiment.make_environment(
            seed=seeds.derive(self._experiment.seed, "environment", index, incarnation),
            num_envs=num_envs,
            evaluation=False,
        )
        opponents.face_in_training(environment)
        replay = factory.replay(num_envs, self._service.writer())
        source = self._source()
        actor = factory.actor(
            factory.key("actor", index, incarnation),
            source,
            replay,
            num_envs=num_envs,
            first_stream=self._index * num_envs,
            device=devices.named(self._experiment.actor_device, "actor"),
        )
        if taken := counts["actor_steps"] // factory.num_streams:
            # Schedules go by the count: whoever starts again, or joins, must not begin them anew.
            actor.set_num_actions(taken)
        between = self._play_itself(environment, source, incarnation) or _newer(source)
        loop = Loop(environment, actor, between)
        try:
            self._act(loop, name, incarnation, RoleStop())
        finally:
            environment.close()
            replay.close()

    def _source(self) -> Any:
        """Returns the source of the actor's parameters, or of its actions."""
        if self._inference is not None:
            return RemotePolicy(self._inference, f"actor/{self._index}")
        assert self._board is not None
        reader = self._board.reader()
        reader.get_variables()
        return reader

    def _play_itself(
        self, environment: Any, source: Any, incarnation: int
    ) -> OpponentChoice | None:
        """Has games be played against the learner's policies, where it is trained that way.

        Args:
          environment: of training.
          source: of the actor's parameters, or of its actions.
          incarnation: of the actor.
        """
        how = opponents.self_play_of(environment)
        if how is None:
            return None
        factory = self._factory
        if self._inference is not None:
            assert self._board is not None
            source = self._board.reader()

        def present() -> Any:
            return source.get_variables(("policy",))[0]

        opponents.oppose(environment, factory.policy, present())
        seed = seeds.derive(self._experiment.seed, "actor", self._index + 1, incarnation)
        return OpponentChoice(
            _newer(source), environment, how, present, seed, num_streams=factory.num_streams
        )

    def _act(self, loop: Loop, name: str, incarnation: int, stop: RoleStop) -> None:
        num_envs = self._experiment.builder.num_envs
        want, reported, episodes = 4 * num_envs, 0, 0
        phase = TRAIN
        while not stop.requested:
            ended = list(loop.finished)
            recent = ended[max(0, len(ended) - (loop.episodes - episodes)) :]
            phase, granted = rpc.insist(
                self._counter.report,
                name,
                incarnation,
                loop.actor_steps,
                loop.episodes,
                recent,
                want,
            )
            reported, episodes = loop.actor_steps, loop.episodes
            if phase == DONE:
                return
            _require_place(name, phase != REPLACED)
            until = granted - num_envs + 1  # From there on, another step would be one too many.
            if until <= loop.actor_steps:
                role.pause(0.1)
                continue
            began = time.perf_counter()
            deadline = began + _REPORT_SECONDS
            while loop.actor_steps < until and time.perf_counter() < deadline:
                loop.advance(until, min(deadline, time.perf_counter() + 0.1), stop)
                role.pause(0.0)
                if stop.requested:
                    break
            # As much as it does between two reports, and a quarter more.
            rate = (loop.actor_steps - reported) / (time.perf_counter() - began)
            want = max(num_envs, int(1.25 * rate * _REPORT_SECONDS))


def _require_place(name: str, is_kept: bool) -> None:
    if not is_kept:  # Whoever is still wanted is started again.
        raise RunError(f"another process has taken the place of {name}.")


class ActorCrew:
    """Several actors in one process, each in a thread of its own.

    Worth it where environments wait rather than compute, and processes are too dear.
    """

    def __init__(
        self,
        factory: ComponentFactory,
        indices: Sequence[int],
        counter: rpc.Remote,
        service: ReplayService,
        board: VariableBoard | None,
        servers: Sequence[rpc.Remote | None],
    ):
        """Makes nothing yet.

        Args:
          factory, counter, service, board: as of `ActorRole`.
          indices: of the actors among all.
          servers: the inference server of each; None: it has none.
        """
        self._actors = [
            ActorRole(factory, index, counter, service, board, server)
            for index, server in zip(indices, servers, strict=True)
        ]

    def run(self) -> None:
        """Runs all of them until they are done; the first error of one ends all."""
        if len(self._actors) == 1:
            return self._actors[0].run()
        me, crew = role.current(), heartbeat.Crew(len(self._actors))
        errors: list[BaseException] = []

        def run_one(index: int, actor: ActorRole) -> None:
            role.enter(me)
            crew.join(index)
            try:
                actor.run()
            except rpc.Stopped:
                pass
            except BaseException as error:
                errors.append(error)
            finally:
                crew.leave(index)

        threads = [
            threading.Thread(target=run_one, args=pair, daemon=True)
            for pair in enumerate(self._actors)
        ]
        for thread in threads:
            thread.start()
        while not errors and any(thread.is_alive() for thread in threads):
            if crew.all_beat_within(1.0):
                heartbeat.beat()
            time.sleep(0.1)
        if errors:
            raise errors[0]


class RoleStop(Stop):
    """The stop of a role, for loops to look at; to look is a sign of life."""

    @property
    def signal_number(self) -> int | None:
        return signal.SIGTERM if role.current().stop.is_set() else None

    @property
    def requested(self) -> bool:
        return role.pause(0.0)


def _newer(source: Any) -> Callable[[], bool]:
    """Returns a function that is true if a source has another version than at its last call."""
    seen = source.version

    def newer() -> bool:
        nonlocal seen
        before, seen = seen, source.version
        return seen != before

    return newer
