"""The replay in a Reverb server, for each role that has to do with it."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

from .....agents.replay.interface import Replay, ReplayFactory
from .....agents.replay.items import ReplaySpec
from ...roles import rpc
from . import servers


class ReverbService:
    """The replay at one address (`roles.service.ReplayService`)."""

    def __init__(self, address: str):
        """Connects to nothing; only what it makes imports Reverb.

        Args:
          address: of the server, host:port.
        """
        self._address = address

    def reads(self, checkpoint: pathlib.Path) -> bool:
        return checkpoint.is_dir()

    def server(self, folder: pathlib.Path, checkpoint: pathlib.Path | None) -> ReplayFactory:
        def make(
            spec: ReplaySpec, environment: Any, extras: Any, /, *, seed: int, **options: Any
        ) -> Replay:
            from .....agents.replay.reverb import ReverbServer

            folder.mkdir(parents=True, exist_ok=True)
            for path in folder.iterdir():
                # Reverb takes the newest by name. A newer one belongs to no checkpoint.
                if path.is_dir() and (checkpoint is None or path.name > checkpoint.name):
                    shutil.rmtree(path)
            with servers.starting(self._address):
                return ReverbServer(
                    spec, environment, extras, self._address, folder=str(folder), **options
                )

        return make

    def reader(self, hosts: int = 1, rank: int = 0) -> ReplayFactory:
        def make(
            spec: ReplaySpec, environment: Any, extras: Any, /, *, seed: int, **options: Any
        ) -> Replay:
            from .....agents.replay.reverb import ReverbReplay

            share = dataclasses.replace(spec, batch_size=spec.batch_size // hosts)
            return ReverbReplay(share, environment, extras, self._address, **options)

        return make

    def writer(self) -> ReplayFactory:
        def make(
            spec: ReplaySpec, environment: Any, extras: Any, /, *, num_envs: int | None, **_: Any
        ) -> Replay:
            from .....agents.replay.reverb import ReverbProxy

            return ReverbProxy(
                spec,
                environment,
                extras,
                self._address,
                num_envs=num_envs,
                while_waiting=rpc.check_stop,
            )

        return make

    def checkpoint(self) -> Callable[[], str]:
        import reverb

        folder = reverb.Client(self._address).checkpoint()  # Which is written by now.
        return lambda: folder
