"""The embedded replay against a naive one, which keeps every row whole and for ever."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import dm_env
import numpy as np
from dm_env import StepType, specs
from hypothesis import given, settings
from hypothesis import strategies as st

from troupe.agents.replay import (
    EmbeddedReplay,
    Episodes,
    ReplaySpec,
    Sequences,
    Transitions,
)
from troupe.environments.specs import EnvironmentSpec, StackedArray

FRAME, STACK = (2, 3), 3
SPEC = EnvironmentSpec(
    observations={
        "number": specs.Array((), np.int64),
        "stack": StackedArray((2, STACK, 3), np.uint8, 0, 255, STACK, axis=-2),
    },
    actions=(specs.Array((2,), np.float32), specs.Array((), np.int32)),
    rewards=specs.Array((), np.float32),
    discounts=specs.Array((), np.float32),
)
EXTRAS = {"value": specs.Array((), np.float32)}


@dataclasses.dataclass
class Row:
    """A row as a naive replay would keep it: whole, and for ever."""

    number: int
    kind: int
    stack: np.ndarray
    reward: float = 0.0
    discount: float = 0.0


class Stream:
    """Episodes of the given lengths, over and over; rows are numbered from `offset`."""

    def __init__(self, lengths: list[int], offset: int) -> None:
        self._lengths = itertools.cycle(lengths)
        self._left = 0
        self.rows: list[Row] = []
        self._offset = offset

    def next(self) -> dm_env.TimeStep:
        number = self._offset + len(self.rows)
        frame = np.full(FRAME, number * 7 % 251, np.uint8)
        if not self.rows or self.rows[-1].kind == StepType.LAST:
            self._left, kind = next(self._lengths), StepType.FIRST
            stack = np.stack([frame] * STACK, axis=-2)
            reward, discount = 0.0, 1.0
        else:
            self._left -= 1
            kind = StepType.MID if self._left else StepType.LAST
            previous = self.rows[-1]
            stack = np.concatenate([previous.stack[:, 1:], frame[:, None]], axis=-2)
            reward = previous.reward = float(number % 5 - 2)
            discount = previous.discount = float(bool(self._left) or number % 2)
        self.rows.append(Row(number, int(kind), stack))
        observation = {"number": np.int64(number), "stack": stack}
        return dm_env.TimeStep(
            np.int32(kind), np.float32(reward), np.float32(discount), observation
        )


def stack_steps(steps: list[dm_env.TimeStep]) -> dm_env.TimeStep:
    names = ("number", "stack")
    return dm_env.TimeStep(
        *(np.stack(field) for field in list(zip(*steps, strict=True))[:3]),
        {name: np.stack([step.observation[name] for step in steps]) for name in names},
    )


def answer(number: np.ndarray) -> tuple[Any, Any]:
    number = np.asarray(number)
    return (
        (np.stack([number, -number], -1).astype(np.float32), number.astype(np.int32)),
        {"value": (number / 2).astype(np.float32)},
    )


class Naive:
    """Which windows should be held, in the order of their insertion: (stream, first row, rows)."""

    def __init__(self, spec: ReplaySpec, streams: list[Stream]) -> None:
        self.spec, self.streams = spec, streams
        self.items: list[tuple[int, int, int]] = []
        self._open = [0] * len(streams)

    def advance(self) -> None:
        item, ending = self.spec.item, []
        for i, stream in enumerate(self.streams):
            rows = stream.rows
            last = len(rows) - 1
            start = last
            while rows[start].kind != StepType.FIRST:
                start -= 1
            ends = rows[last].kind == StepType.LAST
            if isinstance(item, Transitions):
                if ends:
                    ending += [
                        (i, row, last - row) for row in range(max(start, last - item.n_step), last)
                    ]
                elif last - item.n_step >= start:
                    self.items.append((i, last - item.n_step, item.n_step))
            elif isinstance(item, Sequences):
                windows = range(start, last + 1, item.period)
                for window in windows:
                    complete = window + item.length
                    covered = window == start or window - item.period + item.length <= last
                    if complete == last or (ends and complete > last and covered):
                        self.items.append((i, window, min(item.length, last + 1 - window)))
            elif ends:
                self.items.append((i, start, last + 1 - start))
        self.items += ending


def check_transition(naive: Naive, window: tuple[int, int, int], data: Any, at: int) -> None:
    i, start, span = window
    rows = naive.streams[i].rows
    total, product = 0.0, 1.0
    for k, row in enumerate(rows[start : start + span]):
        product *= naive.spec.item.discount if k else 1.0
        total += product * row.reward
        product *= row.discount
    np.testing.assert_allclose(data.reward[at], total, rtol=1e-6)
    np.testing.assert_allclose(data.discount[at], product, rtol=1e-6)
    for observation, row in (
        (data.observation, rows[start]),
        (data.next_observation, rows[start + span]),
    ):
        assert observation["number"][at] == row.number
        np.testing.assert_array_equal(observation["stack"][at], row.stack)
    (vector, number), extras = answer(rows[start].number)
    np.testing.assert_array_equal(data.action[0][at], vector)
    assert data.action[1][at] == number
    assert data.extras["value"][at] == extras["value"]


def check_sequence(naive: Naive, window: tuple[int, int, int], data: Any, at: int) -> None:
    i, start, span = window
    for t in range(data.mask.shape[1]):
        assert data.mask[at, t] == (t < span)
        row = Row(0, int(StepType.LAST), np.zeros((2, STACK, 3), np.uint8))
        if t < span:
            row = naive.streams[i].rows[start + t]
        assert data.observation["number"][at, t] == row.number
        np.testing.assert_array_equal(data.observation["stack"][at, t], row.stack)
        assert data.step_type[at, t] == row.kind
        number = 0 if row.kind == StepType.LAST else row.number
        (vector, number), extras = answer(number)
        np.testing.assert_array_equal(data.action[0][at, t], vector)
        assert data.action[1][at, t] == number
        assert data.extras["value"][at, t] == extras["value"]
        assert data.reward[at, t] == (0 if row.kind == StepType.LAST else row.reward)
        assert data.discount[at, t] == (0 if row.kind == StepType.LAST else row.discount)


ITEMS = st.one_of(
    st.builds(Transitions, st.integers(1, 4), st.sampled_from([0.5, 0.99])),
    st.integers(1, 5).flatmap(lambda n: st.builds(Sequences, st.just(n), st.integers(1, n))),
    st.just(Episodes(8)),
)


@given(
    item=ITEMS,
    num_envs=st.sampled_from([None, 1, 3]),
    max_size=st.integers(2, 12),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    prioritised=st.booleans(),
    steps=st.integers(1, 80),
)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_it_holds_what_a_naive_replay_holds(item, num_envs, max_size, lengths, prioritised, steps):
    spec = ReplaySpec(
        item,
        batch_size=2,
        max_size=max_size,
        priority_exponent=0.5 if prioritised else None,
    )
    replay = EmbeddedReplay(spec, SPEC, EXTRAS, num_envs=num_envs, seed=0)
    # Episodes of a row or two need more rows an item than the rings begin with, so that they grow.
    replay._rows.grow(8 + 2 * replay._windows.span, 0)
    streams = [Stream(lengths[i:] + lengths[:i], 10_000 * i) for i in range(num_envs or 1)]
    naive, adder = Naive(spec, streams), replay.adder()
    before = None
    for step in range(steps):
        timestep = (
            streams[0].next() if num_envs is None else stack_steps([s.next() for s in streams])
        )
        if before is None or (num_envs is None and timestep.first()):
            adder.add_first(timestep)
        else:
            action, extras = answer(before.observation["number"])
            adder.add(action, timestep, extras)
        before = timestep
        naive.advance()
        held = naive.items[-max_size:]
        assert len(replay) == len(held)
        assert replay.inserted == len(naive.items)
        if held and (step % 7 == 0 or step == steps - 1):
            sample = replay.sample(3)
            for k, b in np.ndindex(3, 2):
                window = naive.items[int(sample.info.keys[k, b])]
                assert window in held
                check = check_transition if isinstance(item, Transitions) else check_sequence
                data = type(sample.data)(*(pick(field, k) for field in sample.data))
                check(naive, window, data, b)


def pick(nest: Any, k: int) -> Any:
    if isinstance(nest, dict):
        return {name: value[k] for name, value in nest.items()}
    if isinstance(nest, tuple):
        return tuple(value[k] for value in nest)
    return nest[k]
