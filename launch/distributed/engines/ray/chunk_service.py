"""The replay in a role of its own, for each role that has to do with it."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Callable
from typing import Any

from .....agents.replay.interface import Replay, ReplayFactory
from .....agents.replay.items import ReplaySpec
from .....agents.replay.served import ServedReader, ServedWriter, SharedReplay
from ....files import npz
from ....files.frozen import Freezer
from ....files.replay_files import FILE
from ....local.saver import REPLAY_LIMIT
from ...roles import rpc
from . import host
from .actor_client import RayRemote

_PATIENCE, _CHECKPOINT_PATIENCE = 30.0, 600.0


class RayReplay:
    """The replay of one role (`roles.service.ReplayService`)."""

    def __init__(self, remote: RayRemote, num_envs: int, num_writers: int):
        """Connects to nothing.

        Args:
          remote: the role that serves it.
          num_envs: environments of each actor.
          num_writers: actors.
        """
        self._remote = remote
        self._num_envs, self._num_writers = num_envs, num_writers

    def reads(self, checkpoint: pathlib.Path) -> bool:
        return checkpoint.is_file()

    def server(self, folder: pathlib.Path, checkpoint: pathlib.Path | None) -> ReplayFactory:
        def make(
            spec: ReplaySpec,
            environment: Any,
            extras: Any,
            /,
            *,
            num_envs: int | None,
            seed: int,
            steps_per_sample: int,
        ) -> Replay:
            replay = SharedReplay(
                spec,
                environment,
                extras,
                num_envs=self._num_envs,
                num_writers=self._num_writers,
                seed=seed,
                steps_per_sample=steps_per_sample,
            )
            if checkpoint is not None:
                with open(checkpoint, "rb") as file:
                    replay.restore(npz.read(file))
            host.serve(_Serving(replay, folder))
            return replay

        return make

    def reader(self, hosts: int = 1, rank: int = 0) -> ReplayFactory:
        def make(
            spec: ReplaySpec, environment: Any, extras: Any, /, *, steps_per_sample: int, **_: Any
        ) -> Replay:
            share = dataclasses.replace(spec, batch_size=spec.batch_size // hosts)
            server = self._remote.patient(_PATIENCE)
            return ServedReader(
                share,
                environment,
                extras,
                server,
                steps_per_sample=steps_per_sample,
                hosts=hosts,
                rank=rank,
            )

        return make

    def writer(self) -> ReplayFactory:
        def make(
            spec: ReplaySpec, environment: Any, extras: Any, /, *, num_envs: int | None, **_: Any
        ) -> Replay:
            server = self._remote.patient(_PATIENCE)
            return ServedWriter(
                spec,
                environment,
                extras,
                server,
                num_envs=num_envs,
                while_waiting=rpc.check_stop,
            )

        return make

    def checkpoint(self) -> Callable[[], str]:
        server = self._remote.patient(_CHECKPOINT_PATIENCE)
        folder = server.begin_checkpoint()
        return lambda: server.checkpoint(folder)


class _Serving:
    """The methods of the replay that others may call."""

    def __init__(self, replay: SharedReplay, folder: pathlib.Path):
        self._replay, self._folder = replay, folder
        self._freezer, self._frozen = Freezer(), None
        self.write, self.hear, self.draw = replay.write, replay.hear, replay.draw
        self.published, self.numbers = replay.published, replay.numbers
        self.update_priorities = replay.update_priorities

    def begin_checkpoint(self) -> str:
        """Makes a folder and copies all that the replay holds; `checkpoint` writes the copy."""
        folder = self._folder / f"{time.time_ns():020}"
        folder.mkdir(parents=True)
        with self._replay.paused():
            if self._replay.num_bytes > REPLAY_LIMIT:  # Nobody is to need its memory twice.
                self._write(folder, self._replay.save())
            else:
                self._frozen = self._freezer.freeze(self._replay.save())
        return str(folder)

    def checkpoint(self, folder: str) -> str:
        """Writes what was copied last into its folder, and names it."""
        if self._frozen is not None:
            self._write(pathlib.Path(folder), self._frozen)
            self._frozen = None
        return folder

    @staticmethod
    def _write(folder: pathlib.Path, state: Any) -> None:
        with open(folder / FILE, "wb") as file:
            npz.write(file, state)
