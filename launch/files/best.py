"""The best policy of a run, by its evaluations: variables alone, beside the newest checkpoint.

    best/checkpoint-00000003/
        manifest.json      whose it is, and the evaluation by which it is the best
        policy.npz         its variables, a file for every name that was asked for

It is written as checkpoints are: complete, or as it was before.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from ...agents.snapshots import to_host
from .checkpoints import Checkpoint, CheckpointError, Store

Nest = Any

_LOCK = ".lock"


class BestPolicy:
    """The best policy of one run. Several evaluators may offer theirs at the same time."""

    def __init__(self, folder: str | os.PathLike[str]):
        """Opens a folder, which is made by the first policy that is kept."""
        self._folder = pathlib.Path(folder)
        self._store = Store(folder, keep=1)

    def offer(
        self, variables: Mapping[str, Nest], evaluation: Mapping[str, Any], identity: Any
    ) -> bool:
        """Keeps variables whose evaluation has no lower a mean than that of those kept.

        Args:
          variables: nests by name, those that were judged; each becomes a part.
          evaluation: `mean` and all else that is to be known of it, numbers.
          identity: whose they are.

        Returns:
          True if they are kept. A mean that is not finite is that of no best policy.

        Raises:
          CheckpointError: if they could not be written; those kept before are as they were.
        """
        if not math.isfinite(evaluation["mean"]):
            return False
        with self._alone():
            try:
                held = self._store.newest(lambda damage: None)
            except CheckpointError:  # Damaged: these take its place.
                held = None
            if held is not None and evaluation["mean"] < held.counters["mean"]:
                return False
            self._store.save(to_host(dict(variables)), evaluation, identity)
            return True

    def held(self) -> Checkpoint | None:
        """Returns the policy kept, its evaluation as the counters; None: nothing was judged yet.

        Raises:
          CheckpointError: if it is damaged.
        """
        try:
            return self._store.newest(lambda damage: None)
        except CheckpointError as error:
            raise CheckpointError(
                f"the best policy, in {self._folder}, is damaged; the newest one, in the run's "
                "checkpoints, can still be had."
            ) from error

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """While no other evaluator compares and writes."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = open(self._folder / _LOCK, "a")  # noqa: SIM115 - closed below.
        except OSError as error:
            raise CheckpointError(
                f"could not write the best policy into {self._folder}: {error.strerror or error}."
            ) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
