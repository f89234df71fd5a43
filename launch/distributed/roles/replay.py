"""The replay: a Reverb server with the agent's tables."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import shutil
from typing import TYPE_CHECKING, Any

from launchpad import address as lp_address

from ...files.checkpoints import CheckpointError, Store
from ..engines.launchpad import calls, loopback
from ..supervision import role
from .replay_files import damage

if TYPE_CHECKING:
    from ....environments import EnvironmentSpec
    from ...experiment import Experiment


class ReplayRole:
    """Serves the tables; goes on from the replay of the newest checkpoint."""

    def __init__(
        self,
        experiment: Experiment,
        spec: EnvironmentSpec,
        num_streams: int,
        folder: str,
        checkpoints: str,
        counter: calls.Remote,
        address: str,
    ):
        """Nothing is made yet.

        Args:
          experiment: what is run.
          spec: of one environment.
          num_streams: environments that act at once, over all actors.
          folder: where Reverb writes its checkpoints.
          checkpoints: folder of the run's checkpoints, which name those of the replay.
          counter: is told what the user should know.
          address: of this role.
        """
        self._experiment, self._spec = experiment, spec
        self._num_streams = num_streams
        self._folder = pathlib.Path(folder)
        self._store = Store(checkpoints)
        self._counter, self._address = counter, address

    def run(self) -> None:
        import reverb

        from ....agents.replay import reverb as tables

        self._choose()
        port = lp_address.get_port_from_address(self._address)
        loopback.require_free(port)
        server = reverb.Server(
            tables.make_tables(*replay_arguments(self._experiment, self._spec, self._num_streams)),
            port=port,
            checkpointer=reverb.checkpointers.DefaultCheckpointer(path=str(self._folder)),
        )
        loopback.require_bound(port)
        while not role.pause(0.5):
            pass
        server.stop()

    def _choose(self) -> None:
        """Leaves Reverb the one checkpoint that it is to load, or none."""
        self._folder.mkdir(parents=True, exist_ok=True)
        chosen = None
        try:
            checkpoint = self._store.newest(lambda damage: None)
        except CheckpointError:
            checkpoint = None  # The learner says so, and ends the run.
        kept = checkpoint.counters.get("replay") if checkpoint else None
        if kept:
            wrong = damage(self._folder / kept["folder"], kept["files"])
            if wrong is None:
                chosen = kept["folder"]
            else:
                line = f"warning: {wrong}; the replay starts empty"
                calls.insist(self._counter.note, line)
        for path in self._folder.iterdir():
            # Reverb takes the newest by name. A newer one belongs to no checkpoint.
            if path.is_dir() and (chosen is None or path.name > chosen):
                shutil.rmtree(path)


def replay_arguments(experiment: Experiment, spec: EnvironmentSpec, num_streams: int) -> tuple:
    """What the replay, its writers and its reader must agree on."""
    builder = experiment.builder
    networks = experiment.make_networks(spec)
    policy = builder.make_policy(networks, spec, num_streams=num_streams)
    items: Any = builder.make_replay_spec(spec)
    return items, spec, builder.make_extras_spec(policy), builder.steps_per_dispatch


class Connection:
    """How roles reach the replay."""

    def __init__(self, address: str, experiment: Experiment, spec: EnvironmentSpec, streams: int):
        self._address = address
        self._experiment, self._spec, self._streams = experiment, spec, streams

    @functools.cached_property
    def _arguments(self) -> tuple:
        # Not before it is asked for: it uses jax, which the ranks of a learner must join first.
        return replay_arguments(self._experiment, self._spec, self._streams)

    def learner(self, hosts: int = 1) -> Any:
        """The learner's face of the replay, or that of one of `hosts` that share each batch."""
        from ....agents.replay import reverb as tables

        items, spec, extras, batches = self._arguments
        items = dataclasses.replace(items, batch_size=items.batch_size // hosts)
        return tables.ReverbReplay(items, spec, extras, self._address, steps_per_sample=batches)

    def adder(self, num_envs: int) -> Any:
        """What writes for one actor."""
        from ....agents.replay import reverb as tables

        items, spec, extras, _ = self._arguments
        return tables.ReverbAdder(
            items, spec, extras, self._address, num_envs=num_envs, while_waiting=calls.check_stop
        )

    def checkpoint(self) -> str:
        """Has the server write a checkpoint; returns its folder."""
        import reverb

        return reverb.Client(self._address).checkpoint()
