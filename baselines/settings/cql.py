"""Settings of CQL."""

from __future__ import annotations

from ..tuned import Tuned
from .sources import MIXED_PENDULUM, OFFLINE

SETTINGS = (
    Tuned(
        "cql",
        "Pendulum-v1",
        config={**OFFLINE, "conservative_weight": 1.0, "num_action_samples": 4},
        steps=6_000,
        target=-300.0,
        source=MIXED_PENDULUM,
        evaluation_every=2_000,
    ),
)
