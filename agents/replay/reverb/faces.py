"""A replay in a Reverb server as the roles that do not learn from it hold it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import reverb

from ..items import ReplaySpec, Rollouts, Sample
from ..nests import Nest
from ..shapes import held_bytes, sample_shapes
from .adder import ReverbAdder
from .tables import TABLE, make_tables

_FRESH_SECONDS = 0.5  # How old the server's numbers may be.


class ReverbFace:
    """What every role can do with a replay in a server; it can neither write nor draw."""

    def __init__(
        self,
        spec: ReplaySpec,
        environment_spec: Any,
        extras_spec: Nest,
        address: str,
        *,
        num_envs: int | None = None,
        while_waiting: Callable[[], None] | None = None,
    ) -> None:
        """Connects to nothing yet.

        Args:
          spec: As the server's tables were made from.
          environment_spec: Likewise.
          extras_spec: Likewise.
          address: Of the server, host:port.
          num_envs: N, of the actor that writes here.
          while_waiting: Called again and again while an adder waits; may raise.
        """
        self.spec = spec
        self._arguments = spec, environment_spec, extras_spec, address
        self._num_envs, self._while_waiting = num_envs, while_waiting
        self._client = reverb.Client(address)
        self._adders: list[ReverbAdder] = []
        self._numbers: tuple[int, int, int] = 0, 0, 0
        self._numbers_until = 0.0

    def adder(self) -> ReverbAdder:
        """What writes into this replay, until it is closed."""
        adder = ReverbAdder(
            *self._arguments, num_envs=self._num_envs, while_waiting=self._while_waiting
        )
        self._adders.append(adder)
        return adder

    def can_insert(self) -> bool:
        """True: it is the server that holds actors up."""
        return True

    def can_sample(self, num_batches: int = 1) -> bool:
        """False: nothing is drawn here."""
        return False

    def wait(self, seconds: float) -> bool:
        """Waits for batches, at most so long. Returns whether they are ready."""
        time.sleep(seconds)
        return False

    def sample(self, num_batches: int | None = None) -> Sample:
        """Raises RuntimeError: nothing is drawn here."""
        raise RuntimeError("only the learner draws from a replay in a server.")

    def sample_shapes(self, num_batches: int | None = None) -> Sample:
        """What `sample` gives the learner, as `jax.ShapeDtypeStruct`."""
        return sample_shapes(*self._arguments[:3], num_batches, key_dtype=np.uint64)

    def place_batches(self, place: Callable[[Sample], Sample]) -> None:
        """Nothing is read ahead here."""

    @property
    def num_bytes(self) -> int:
        """About the bytes of what is held, as of a moment ago."""
        return held_bytes(*self._arguments[:3], len(self))

    def dataset(self, num_batches: int | None = None) -> Iterator[Sample]:
        """Batches without end, as `sample` gives them."""
        while True:
            yield self.sample(num_batches)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Raises RuntimeError: who draws nothing knows of no priorities."""
        raise RuntimeError("only the learner gives items of a replay in a server priorities.")

    def save(self) -> Nest:
        """Has the server write a checkpoint, and says into which folder."""
        return {"folder": np.array(self._client.checkpoint())}

    def restore(self, state: Nest) -> None:
        """Raises ValueError: it is the server that goes on from a checkpoint."""
        raise ValueError(
            f"a Reverb server goes on from {state['folder']} when it is started with that folder; "
            "it cannot be given to a client."
        )

    def flush(self) -> None:
        """Nothing waits to be written here."""

    def close(self) -> None:
        """Sends what is complete, for at most a moment."""
        for adder in self._adders:
            adder.close()

    def __len__(self) -> int:
        return self._look()[0]

    @property
    def size(self) -> int:
        """Items held, as of a moment ago."""
        return self._look()[0]

    @property
    def inserted(self) -> int:
        """Items ever inserted, as of a moment ago."""
        return self._look()[1]

    @property
    def sampled(self) -> int:
        """Items ever drawn, as of a moment ago; those that wait for the learner among them."""
        return self._look()[2]

    @property
    def observed_samples_per_insert(self) -> float:
        """Items drawn per item inserted since the replay held its `min_size`; 0 before."""
        _, inserted, sampled = self._look()
        since = inserted - (0 if isinstance(self.spec.item, Rollouts) else self.spec.min_size)
        return sampled / since if since > 0 else 0.0

    def _look(self) -> tuple[int, int, int]:
        """Items held, inserted and drawn; the last known where the server does not answer."""
        now = time.monotonic()
        if now >= self._numbers_until:
            # Asking a server that does not answer takes seconds: not again soon.
            self._numbers_until = now + 10 * _FRESH_SECONDS
            with contextlib.suppress(reverb.ReverbError, RuntimeError):
                info = self._client.server_info(1)[TABLE]
                pace = info.rate_limiter_info
                self._numbers = (
                    info.current_size,
                    pace.insert_stats.completed,
                    pace.sample_stats.completed,
                )
                self._numbers_until = now + _FRESH_SECONDS
        return self._numbers


class ReverbServer(ReverbFace):
    """The server itself, in whose process the items are."""

    def __init__(
        self,
        spec: ReplaySpec,
        environment_spec: Any,
        extras_spec: Nest,
        address: str,
        *,
        num_envs: int | None = None,
        steps_per_sample: int = 1,
        folder: str | None = None,
    ) -> None:
        """Begins to serve.

        Args:
          spec, environment_spec, extras_spec: As `EmbeddedReplay` takes them.
          address: Where to serve, host:port; the host is for clients only.
          num_envs: Of no meaning here.
          steps_per_sample: K, batches that the learner draws at once.
          folder: Of checkpoints, from the newest of which it goes on; None: a temporary one.

        Raises:
          ValueError: If the pace would come to a halt.
        """
        super().__init__(spec, environment_spec, extras_spec, address)
        self._server = reverb.Server(
            make_tables(spec, environment_spec, extras_spec, steps_per_sample),
            port=int(address.rpartition(":")[2]),
            checkpointer=folder and reverb.checkpointers.DefaultCheckpointer(path=folder),
        )

    def close(self) -> None:
        """Ends the server."""
        self._server.stop()
