"""The priority of new items."""

from __future__ import annotations

import contextlib
import time

import numpy as np
import reverb

from .tables import LARGEST

_FRESH_SECONDS = 2.0


class LargestPriority:
    """The largest priority that the learner ever gave: what new items have."""

    def __init__(self, address: str) -> None:
        self._client = reverb.Client(address)
        self._value = 1.0
        self._ask_at = 0.0

    def get(self) -> float:
        """At most a few seconds old."""
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at = now + _FRESH_SECONDS
            with contextlib.suppress(reverb.ReverbError, RuntimeError):
                if self._client.server_info(1)[LARGEST].current_size:
                    (item,) = self._client.sample(LARGEST, emit_timesteps=False)
                    self._value = np.asarray(item.data[0]).item()
                else:
                    self._value = 1.0
        return self._value

    def put(self, value: float) -> None:
        """Tells all actors."""
        self._client.insert(np.float64(value), {LARGEST: 1.0})
        self._value = value
