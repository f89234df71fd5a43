"""What a replay holds and how it is drawn: values that both implementations read.

Every environment writes a stream of rows, one per timestep: the row of time t holds the
observation and step type of t, the action taken at t with its extras, and the reward and discount
that came of it at t + 1. The last timestep of an episode is a row of its own, whose action, reward
and discount say nothing. An item is a window of rows of one stream.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

Nest = Any
Array = Any
"""A numpy array on the host; inside of an update, an array of jax."""


class Transition(NamedTuple):
    """A batch of n-step transitions; B: batch.

    With n = 1, (s_t, a_t, r_{t+1}, d_{t+1}, s_{t+1}). With n > 1, `reward` is the sum over k < n of
    gamma^k d_{t+1} ... d_{t+k} r_{t+k+1}, and `discount` is gamma^{n-1} d_{t+1} ... d_{t+n}; a
    window that meets the end of its episode stops there and is shorter.
    """

    observation: Nest
    """[B, ...]"""
    action: Nest
    """[B, ...]"""
    reward: Array
    """[B] float32"""
    discount: Array
    """[B] float32: 0 where the episode terminated, without the last factor gamma, which the loss
    applies."""
    next_observation: Nest
    """[B, ...]"""
    extras: Nest = ()
    """[B, ...], of time t"""


class Sequence(NamedTuple):
    """A batch of windows of rows; B: batch, T: time. Rows are as the module describes them."""

    observation: Nest
    """[B, T, ...]"""
    action: Nest
    """[B, T, ...]; of no meaning where `step_type` is LAST"""
    reward: Array
    """[B, T] float32, that followed the action; 0 where `step_type` is LAST"""
    discount: Array
    """[B, T] float32, that followed the action; 0 where the episode terminated there"""
    step_type: Array
    """[B, T] int32, dm_env.StepType of the observation"""
    mask: Array
    """[B, T] float32: 1 for rows that were seen, 0 for padding past the end of an episode"""
    extras: Nest = ()
    """[B, T, ...]"""


class SampleInfo(NamedTuple):
    """Where the items of a batch came from."""

    keys: Array
    """[B] int64 (embedded) or uint64 (Reverb); names the items when priorities are written back"""
    probabilities: Array
    """[B] float32, with which each item was drawn"""
    size: Array
    """[B] float32, items that the replay held when the batch was drawn"""


class Sample(NamedTuple):
    """A batch as the learner gets it. Fused for K gradient steps, every array is [K, B, ...]."""

    info: SampleInfo
    data: Any
    """A `Transition` or a `Sequence`."""


@dataclasses.dataclass(frozen=True)
class Transitions:
    """Items are n-step transitions, one for every action."""

    n_step: int = 1
    discount: float = 0.99
    """gamma, used between the steps of a window."""

    def __post_init__(self):
        if self.n_step < 1:
            raise ValueError(f"n_step is {self.n_step}; it must be at least 1.")
        if not 0.0 <= self.discount <= 1.0:
            raise ValueError(f"discount is {self.discount}; it must lie between 0 and 1.")


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Items are windows of `length` rows of one episode, one begun every `period` rows.

    Windows overlap where the period is shorter than the length. One that meets the end of its
    episode is padded (mask 0), and an episode's last row is always within a window. What is a
    burn-in and what is learned from is the learner's affair: see `losses.masks.learned_steps`.
    """

    length: int
    period: int

    def __post_init__(self):
        if self.length < 1 or not 1 <= self.period <= self.length:
            raise ValueError(
                f"length is {self.length} and period is {self.period}; length must be at least 1 "
                "and period between 1 and length."
            )


@dataclasses.dataclass(frozen=True)
class Episodes:
    """Items are whole episodes, padded to `max_length` rows (the last observation included)."""

    max_length: int

    def __post_init__(self):
        if self.max_length < 2:
            raise ValueError(f"max_length is {self.max_length}; an episode has at least 2 rows.")


@dataclasses.dataclass(frozen=True)
class Rollouts:
    """On-policy: items are consecutive windows of `length` + 1 rows of every stream.

    Windows run across episodes and share one row, the last of one being the first of the next, so
    that every value can be bootstrapped. Each is given to the learner exactly once, in the order of
    writing. A batch may have any number of them: with N streams and B = N one of each, with more
    several of each, with fewer some of them.
    """

    length: int

    def __post_init__(self):
        if self.length < 1:
            raise ValueError(f"length is {self.length}; it must be at least 1.")


Item = Transitions | Sequences | Episodes | Rollouts


@dataclasses.dataclass(frozen=True)
class ReplaySpec:
    """What an agent asks of a replay."""

    item: Item
    batch_size: int
    """B, items per gradient step."""
    max_size: int
    """Items held; the oldest make room. Of `Rollouts`, those that wait are one dispatch's worth."""
    min_size: int = 1
    """Items needed before the first batch."""
    samples_per_insert: float | None = None
    """Items drawn per item inserted once `min_size` is reached; None: no pace is kept. Gradient
    steps per insert are this over `batch_size`."""
    tolerance: float | None = None
    """How far drawn items may run from the pace, in drawn items; None: the larger of two
    dispatches' worth and a tenth of `min_size * samples_per_insert`."""
    priority_exponent: float | None = None
    """alpha of prioritised replay (Schaul et al., 2016); None samples uniformly."""

    def __post_init__(self):
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}; it must be at least 1.")
        if not 1 <= self.min_size <= self.max_size:
            raise ValueError(
                f"min_size is {self.min_size} and max_size is {self.max_size}; min_size must be at "
                "least 1 and at most max_size."
            )
        if self.max_size < self.batch_size:
            raise ValueError(
                f"max_size is {self.max_size} and batch_size is {self.batch_size}; a replay must "
                "hold at least one batch."
            )
        if self.samples_per_insert is not None and self.samples_per_insert <= 0:
            raise ValueError(
                f"samples_per_insert is {self.samples_per_insert}; it must be positive, or None."
            )
        if self.priority_exponent is not None and self.priority_exponent < 0:
            raise ValueError(
                f"priority_exponent is {self.priority_exponent}; it must be at least 0, or None."
            )

    @property
    def is_bounded(self) -> bool:
        """Whether drawing comes to an end while nobody writes: a pace is kept, or items are drawn
        once each."""
        return self.samples_per_insert is not None or isinstance(self.item, Rollouts)
