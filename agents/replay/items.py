"""Values that say what items a replay holds and how they are drawn, for all implementations.

Every environment writes a stream of rows, one per timestep: the row of time t holds the
observation and step type of t, the action taken at t with its extras, and the reward and discount
that came of it at t + 1. The last timestep of an episode is a row of its own, whose action, reward
and discount mean nothing. An item is a window of rows of one stream.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

from ..bounds import Above, AllBounds, check

Nest = Any
Array = Any
"""A numpy array on the host; inside of an update, an array of jax."""


WAITING = 3
"""Step type of a row in which a stream waits (`environments.specs.waiting`), in memory alone: in
rollouts it is padding, and it is in no other item."""
_MOST_ITEMS = 10**9
_MOST_ROWS = 10**6  # Of one item.


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
    """[B, T] float32: 1 for rows that were seen, 0 for padding past the end of an episode and for
    rows in which the stream waited"""
    extras: Nest = ()
    """[B, T, ...]"""


class SampleInfo(NamedTuple):
    """Keys and probabilities of the items of a batch, and the size of the replay, at the draw."""

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

    bounds: ClassVar[AllBounds] = {"n_step": (1, 1_000), "discount": (0.0, 1.0)}

    def __post_init__(self):
        check(self)


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Items are windows of `length` rows of one episode, one begun every `period` rows.

    Windows overlap where the period is shorter than the length. One that meets the end of its
    episode is padded (mask 0), and an episode's last row is always within a window. The learner
    decides which steps are burn-in and which are learned from: see `losses.masks.learned_steps`.
    """

    length: int
    period: int

    bounds: ClassVar[AllBounds] = {"length": (1, _MOST_ROWS), "period": (1, _MOST_ROWS)}

    def __post_init__(self):
        check(self)
        if self.period > self.length:
            raise ValueError(
                f"length is {self.length} and period is {self.period}; period must be at most "
                "length."
            )


@dataclasses.dataclass(frozen=True)
class Episodes:
    """Items are whole episodes, padded to `max_length` rows (the last observation included)."""

    max_length: int

    # An episode has at least two rows.
    bounds: ClassVar[AllBounds] = {"max_length": (2, _MOST_ROWS)}

    def __post_init__(self):
        check(self)


@dataclasses.dataclass(frozen=True)
class Rollouts:
    """On-policy: items are consecutive windows of `length` + 1 rows of every stream.

    Windows run across episodes and share one row, the last of one being the first of the next, so
    that every value can be bootstrapped. Each is given to the learner exactly once, in the order of
    writing. A batch may have any number of them: with N streams and B = N one of each, with more
    several of each, with fewer some of them.
    """

    length: int

    bounds: ClassVar[AllBounds] = {"length": (1, _MOST_ROWS)}

    def __post_init__(self):
        check(self)


Item = Transitions | Sequences | Episodes | Rollouts


@dataclasses.dataclass(frozen=True)
class ReplaySpec:
    """The replay that an agent asks for."""

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
    """Drawn items by which drawing may run from the pace; None: the larger of a dispatch's worth
    and a batch, and of a tenth of `min_size * samples_per_insert`."""
    max_ahead: int | None = None
    """Of `Rollouts` of several actors, how many may be begun beyond those that the newest published
    parameters have learned from; an actor waits before it chooses an action that would be of more.
    None: no more than wait to be drawn hold them up."""
    priority_exponent: float | None = None
    """alpha of prioritised replay (Schaul et al., 2016); None samples uniformly."""

    bounds: ClassVar[AllBounds] = {
        "batch_size": (1, _MOST_ITEMS),
        "max_size": (1, _MOST_ITEMS),
        "min_size": (1, _MOST_ITEMS),
        "samples_per_insert": Above(0.0, 1e6),
        "tolerance": (0.0, 1e15),
        "max_ahead": (1, _MOST_ITEMS),
        "priority_exponent": (0.0, 10.0),
    }

    def __post_init__(self):
        check(self)
        if self.min_size > self.max_size:
            raise ValueError(
                f"min_size is {self.min_size} and max_size is {self.max_size}; min_size must be "
                "at most max_size."
            )
        if self.max_size < self.batch_size:
            raise ValueError(
                f"max_size is {self.max_size} and batch_size is {self.batch_size}; a replay must "
                "hold at least one batch."
            )
        if self.max_ahead is not None and not isinstance(self.item, Rollouts):
            raise ValueError(
                f"max_ahead is {self.max_ahead}, and items are {type(self.item).__name__}, which "
                "are drawn many times; take samples_per_insert."
            )

    @property
    def is_bounded(self) -> bool:
        """True if drawing comes to an end while nobody writes: a pace is kept, or items are drawn
        once each."""
        return self.samples_per_insert is not None or isinstance(self.item, Rollouts)
