"""Replay: items that actors write and learners draw. `items` says what they are."""

from .embedded.embedded_replay import EmbeddedReplay
from .interface import Replay, ReplayFactory
from .items import (
    Episodes,
    ReplaySpec,
    Rollouts,
    Sample,
    SampleInfo,
    Sequence,
    Sequences,
    Transition,
    Transitions,
)
from .offline.dataset import Dataset
from .offline.offline_replay import OfflineReplay

__all__ = [
    "Dataset",
    "EmbeddedReplay",
    "Episodes",
    "OfflineReplay",
    "Replay",
    "ReplayFactory",
    "ReplaySpec",
    "Rollouts",
    "Sample",
    "SampleInfo",
    "Sequence",
    "Sequences",
    "Transition",
    "Transitions",
]
