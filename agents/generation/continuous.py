"""Continuous batching: an answer that ends gives its slot to the next one.

S slots are rows of one cache. A turn writes answers that wait into free slots and has all slots
draw tokens, until enough slots are free again, or for so long that others should have their turn.

Parameters may be replaced between turns, also amid an answer. Its further tokens are then drawn
with the newer ones, from a cache that the older ones began; each log-probability is that by which
its token was drawn. To let slots run empty first would leave most idle at every version, and to
keep both versions would need the memory of both.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...environments.specs import AnswerArray
from ..networks.decoder import Cache, Decoder
from . import masks
from .loop import AnswerRows, Answers, begin, draw_next
from .sampling import Sampling

Nest = Any
_TURN = 16
"""Tokens that a turn draws at most: what arrives meanwhile waits so long."""
_SHARE = 8
"""A turn ends early where one of so many slots has become free, and answers wait."""


class Slots(NamedTuple):
    """Answers that are being drawn, one in each slot."""

    rows: AnswerRows
    """[S]; a slot without an answer has one that has ended"""
    place: jax.Array
    """int32 [S], of the next token in the answer"""
    keys: jax.Array
    """[S], of the answers"""
    cache: Cache
    """of S rows and P + T - 1 columns"""


class Prefilled(NamedTuple):
    """Prompts whose answers can begin."""

    cache: Cache
    """of M rows and P columns"""
    logits: jax.Array
    """float32 [M, V], of the first token"""


class SlotPrograms:
    """The pure functions of slots."""

    def __init__(
        self,
        decoder: Decoder,
        answer: AnswerArray,
        sampling: Sampling,
        num_slots: int,
        prompt_length: int,
    ):
        """Computes nothing.

        Args:
          decoder: the language model.
          answer: the spec of answers [G, T].
          sampling: how tokens are chosen.
          num_slots: S.
          prompt_length: P.
        """
        self._decoder, self._answer, self._sampling = decoder, answer, sampling
        self.num_slots, self.prompt_length, self.length = num_slots, prompt_length, answer.shape[-1]

    def empty(self) -> Slots:
        """Returns slots without answers."""
        rows = begin(jnp.ones(self.num_slots, bool), self.length, self._answer.pad)
        columns = self.prompt_length + self.length - 1
        return Slots(
            rows,
            jnp.zeros(self.num_slots, jnp.int32),
            jax.random.split(jax.random.key(0), self.num_slots),
            self._decoder.empty_cache(self.num_slots, columns, apart=True),
        )

    def prefill(self, params: Nest, prompts: jax.Array) -> Prefilled:
        """Reads prompts, int32 [M, P]; params as of `Decoder.apart`."""
        is_token = masks.prompt_mask(prompts, self._answer.pad)
        batch, columns = prompts.shape
        empty = self._decoder.empty_cache(batch, columns, apart=True)
        hidden, cache = self._decoder.extend(params, prompts, is_token, empty, jnp.int32(0))
        return Prefilled(cache, self._decoder.logits(params, hidden[:, -1]))

    def admit(
        self,
        slots: Slots,
        prefilled: Prefilled,
        prompts: jax.Array,
        where: jax.Array,
        keys: jax.Array,
    ) -> Slots:
        """Begins answers.

        Args:
          slots: to be donated.
          prefilled: the prompts.
          prompts: int32 [n], the row of `prefilled` that each answers.
          where: int32 [n], the slot of each, none of them twice; those from S on are of no answer.
          keys: [n], one of each.
        """
        rows = begin(jnp.zeros(len(where), bool), self.length, self._answer.pad)
        logits = prefilled.logits[prompts]
        rows = draw_next(rows, logits, keys, jnp.int32(0), self._answer, self._sampling)
        rows = rows._replace(ended=rows.ended | (self.length == 1))
        known, held = prefilled.cache, slots.cache

        def write(old: jax.Array, new: jax.Array) -> jax.Array:
            return old.at[where, :, : self.prompt_length].set(new[prompts], mode="drop")

        is_token = jnp.pad(known.is_token[prompts], [(0, 0), (0, self.length - 1)])
        return Slots(
            jax.tree.map(lambda old, new: old.at[where].set(new, mode="drop"), slots.rows, rows),
            slots.place.at[where].set(1, mode="drop"),
            slots.keys.at[where].set(keys, mode="drop"),
            Cache(
                jax.tree.map(write, held.keys, known.keys),
                jax.tree.map(write, held.values, known.values),
                held.is_token.at[where].set(is_token, mode="drop"),
            ),
        )

    def advance(self, params: Nest, slots: Slots, most: jax.Array, enough: jax.Array) -> Slots:
        """Draws tokens in all slots whose answers have not ended.

        Args:
          params: as of `Decoder.apart`.
          slots: to be donated.
          most: int32 [], tokens that each draws at most.
          enough: int32 [], stops where so many slots are free.
        """
        last = self.prompt_length + self.length - 2

        def goes_on(carry: tuple[jax.Array, Slots]) -> jax.Array:
            drawn, slots = carry
            return (drawn < most) & (jnp.sum(slots.rows.ended) < enough)

        def step(carry: tuple[jax.Array, Slots]) -> tuple[jax.Array, Slots]:
            drawn, (rows, place, keys, cache) = carry
            at = jnp.minimum(self.prompt_length + place - 1, last)
            given = rows.token[:, None], ~rows.ended[:, None]
            hidden, cache = self._decoder.extend(params, *given, cache, at)
            logits = self._decoder.logits(params, hidden[:, 0])
            after = draw_next(rows, logits, keys, place, self._answer, self._sampling)
            place = place + ~rows.ended
            after = after._replace(ended=after.ended | (place >= self.length))
            return drawn + 1, Slots(after, place, keys, cache)

        return jax.lax.while_loop(goes_on, step, (jnp.int32(0), slots))[1]


class Answered(NamedTuple):
    """The answers to one prompt."""

    name: Hashable
    """By which they were asked for."""
    answers: Answers
    """[G, T], numpy"""
    steps: int
    """Gradient steps of the oldest parameters among those that the answers were drawn with."""


class _Group:
    """A prompt whose answers are being drawn."""

    def __init__(self, name: Hashable, prompt: np.ndarray, keys: np.ndarray, empty: Answers):
        self.name, self.prompt, self.keys, self.answers = name, prompt, keys, empty
        self.steps, self.row = 0, 0
        self.begun = self.ended = 0
        """Answers of which either is true."""


class ContinuousBatch:
    """Prompts in, groups of answers out, in the order in which they end.

    An answer depends on its prompt, its key and the parameters, whatever is in the other slots.

    Attributes:
      steps: gradient steps of the newest parameters.
      tokens: drawn so far.
      turns: so far.
    """

    def __init__(
        self,
        decoder: Decoder,
        answer: AnswerArray,
        sampling: Sampling,
        num_slots: int,
        prompt_length: int,
        device: jax.Device | None = None,
    ):
        """Compiles nothing yet.

        Args:
          decoder, answer, sampling: as of `loop.generate`.
          num_slots: S.
          prompt_length: P.
          device: that computes; None: jax's default.
        """
        self.num_slots, self._answer = num_slots, answer
        self._device = device or jax.local_devices()[0]
        programs = SlotPrograms(decoder, answer, sampling, num_slots, prompt_length)
        self._empty = jax.jit(programs.empty)
        self._prefill = jax.jit(programs.prefill)
        self._admit = jax.jit(programs.admit, donate_argnums=0)
        self._advance = jax.jit(programs.advance, donate_argnums=1)
        self._cast = jax.jit(decoder.apart)
        self._few = max(1, num_slots // _SHARE)
        self._prompt_length = prompt_length
        self._given: Nest = object()
        self._params: Nest = None
        self.steps = 0
        self.tokens = self.turns = 0
        self.clear()

    def clear(self) -> None:
        """Forgets all prompts and answers."""
        self._waiting: collections.deque[_Group] = collections.deque()
        self._prefilled: collections.deque[_Group] = collections.deque()
        """Those of `_known` of which not all answers have begun."""
        self._known: Prefilled | None = None
        self._held: list[tuple[_Group, int] | None] = [None] * self.num_slots
        """The answer in each slot: its group, and its number there."""
        self._slots = jax.device_put(self._empty(), self._device)

    @property
    def is_idle(self) -> bool:
        """True if there is nothing to be answered."""
        return not (self._waiting or self._prefilled or any(self._held))

    def add(self, name: Hashable, prompt: np.ndarray, keys: np.ndarray) -> None:
        """Asks for G answers to a prompt.

        Args:
          name: that they are given back by.
          prompt: int32 [P], left-padded, not all padding.
          keys: words of the keys of the answers, [G, ...].
        """
        shape = self._answer.shape
        empty = Answers(np.full(shape, self._answer.pad, np.int32), np.zeros(shape, np.float32))
        self._waiting.append(_Group(name, prompt, keys, empty))

    def discard(self, name: Hashable) -> None:
        """Forgets a prompt and its answers, where there is one of that name."""
        for queue in (self._waiting, self._prefilled):
            for group in [one for one in queue if one.name == name]:
                queue.remove(group)
        # What the slot draws meanwhile is of nobody.
        self._held = [one if one and one[0].name != name else None for one in self._held]

    def take(self, params: Nest) -> None:
        """Draws with these parameters, `{"decoder": ..., "steps": int32 []}`, from now on."""
        if params is self._given:
            return
        self._given, self.steps = params, int(params["steps"])
        self._params = self._cast(jax.device_put(params["decoder"], self._device))

    def warm_up(self, params: Nest, while_waiting: Callable[[], None] = lambda: None) -> None:
        """Compiles all that turns need, and forgets prompts and answers.

        Args:
          params: as of `take`.
          while_waiting: is called between programs.
        """
        self.take(params)
        words = np.asarray(jax.random.key_data(jax.random.key(0)))
        for num_prompts in {self._prompts_of(self._few), self._prompts_of(self.num_slots)}:
            prompts = np.full((num_prompts, self._prompt_length), self._answer.pad, np.int32)
            known = self._prefill(self._params, prompts)
            for size in {self._few, self.num_slots}:
                while_waiting()
                nowhere = np.full(size, self.num_slots, np.int32)
                keys = jax.random.wrap_key_data(jnp.asarray(np.repeat(words[None], size, 0)))
                rows = np.zeros(size, np.int32)
                self._slots = self._admit(self._slots, known, rows, nowhere, keys)
        while_waiting()
        self._slots = self._advance(self._params, self._slots, 1, self.num_slots)
        self.clear()

    def turn(self) -> list[Answered]:
        """Begins answers in free slots, draws tokens, and returns the groups that are complete."""
        while self._begin_some():
            pass
        waits = bool(self._waiting or self._prefilled)
        busy = sum(one is not None for one in self._held)
        if not busy:
            return []
        free = self.num_slots - busy
        enough = min(free + self._few, self.num_slots) if waits else self.num_slots
        self._slots = self._advance(self._params, self._slots, _TURN, enough)
        self.turns += 1
        return self._collect()

    def _begin_some(self) -> bool:
        """Fills free slots from prompts that are read, and reads some where there are none."""
        free = [slot for slot, one in enumerate(self._held) if one is None]
        if not free or not (self._waiting or self._prefilled):
            return False
        if not self._prefilled:
            self._read(self._prompts_of(len(free)))
        begun: list[tuple[_Group, int]] = []
        while self._prefilled and len(begun) < len(free):
            group = self._prefilled[0]
            begun.append((group, group.begun))
            group.begun += 1
            if group.begun == len(group.keys):
                self._prefilled.popleft()
        for slot, one in zip(free, begun, strict=False):
            self._held[slot] = one
        size = self._few if len(begun) <= self._few else self.num_slots
        prompts, where = np.zeros(size, np.int32), np.full(size, self.num_slots, np.int32)
        keys = np.repeat(begun[0][0].keys[:1], size, 0)
        for i, (group, number) in enumerate(begun):
            prompts[i], where[i], keys[i] = group.row, free[i], group.keys[number]
        self._slots = self._admit(
            self._slots,
            self._known,
            prompts,
            where,
            jax.random.wrap_key_data(jnp.asarray(keys)),
        )
        return True

    def _prompts_of(self, num_answers: int) -> int:
        """The number of prompts that have so many answers."""
        return -(-num_answers // self._answer.shape[0])

    def _read(self, count: int) -> None:
        """Prefills so many of the prompts that wait."""
        groups = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        few, most = self._prompts_of(self._few), self._prompts_of(self.num_slots)
        size = few if len(groups) <= few else most
        prompts = np.full((size, self._prompt_length), self._answer.pad, np.int32)
        for row, group in enumerate(groups):
            prompts[row], group.row, group.steps = group.prompt, row, self.steps
        self._known = self._prefill(self._params, prompts)
        self._prefilled.extend(groups)

    def _collect(self) -> list[Answered]:
        """Takes answers that have ended out of their slots."""
        rows = self._slots.rows
        found: list[Answered] = []
        ended = [i for i in np.flatnonzero(np.asarray(rows.ended)) if self._held[i] is not None]
        if not ended:
            return found
        answers = jax.tree.map(np.asarray, rows.answers)
        self.tokens += int(np.asarray(self._slots.place)[ended].sum())
        for slot in ended:
            held = self._held[slot]
            assert held is not None
            group, number = held
            self._held[slot] = None
            group.answers.tokens[number] = answers.tokens[slot]
            group.answers.log_probs[number] = answers.log_probs[slot]
            group.ended += 1
            if group.ended == len(group.keys):
                found.append(Answered(group.name, group.answers, group.steps))
        return found
