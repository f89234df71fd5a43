"""Golden items: what a replay holds after given episodes, the same in every implementation."""

from __future__ import annotations

import collections
from typing import Any

import dm_env
import jax
import numpy as np
import pytest
from dm_env import StepType

from troupe.agents.losses import masks
from troupe.agents.replay import (
    EmbeddedReplay,
    Episodes,
    ReplaySpec,
    Rollouts,
    Sequences,
    Transitions,
)
from troupe.environments.specs import EnvironmentSpec, StackedArray

from .episodes import (
    EXTRAS,
    ONE,
    SPEC,
    TWO,
    ChunkedReplay,
    DeviceReplayOnHost,
    Episode,
    ServedReplay,
    act,
    contents,
    items_of,
    play_one,
    play_vector,
    timesteps,
)


@pytest.fixture(
    params=["embedded", "device", "chunks", pytest.param("reverb", marks=pytest.mark.distributed)]
)
def make_replay(request):
    made: list[Any] = []

    def make(
        spec: ReplaySpec,
        num_envs: int | None = None,
        environment_spec: EnvironmentSpec = SPEC,
    ) -> Any:
        if request.param == "embedded":
            replay: Any = EmbeddedReplay(spec, environment_spec, EXTRAS, num_envs=num_envs, seed=0)
        elif request.param == "device":
            replay = DeviceReplayOnHost(spec, num_envs, environment_spec)
        elif request.param == "chunks":
            replay = ChunkedReplay(spec, num_envs, environment_spec)
        else:
            pytest.importorskip("reverb")
            replay = ServedReplay(spec, num_envs, environment_spec)
        made.append(replay)
        return replay

    yield make
    for replay in made:
        replay.close()


# observation, action, reward, discount, next observation, extras
ONE_STEP = [
    (0.0, 0, 1.0, 1.0, 1.0, 0.0),
    (1.0, 1, 2.0, 1.0, 2.0, -1.0),
    (2.0, 2, 3.0, 1.0, 3.0, -2.0),
    (3.0, 3, 4.0, 0.0, 4.0, -3.0),
    (10.0, 10, 5.0, 1.0, 11.0, -10.0),
    (11.0, 11, 6.0, 1.0, 12.0, -11.0),
]
THREE_STEPS = [
    (0.0, 0, 1.0 + 0.5 * 2.0 + 0.25 * 3.0, 0.25, 3.0, 0.0),
    (1.0, 1, 2.0 + 0.5 * 3.0 + 0.25 * 4.0, 0.0, 4.0, -1.0),
    (2.0, 2, 3.0 + 0.5 * 4.0, 0.0, 4.0, -2.0),
    (3.0, 3, 4.0, 0.0, 4.0, -3.0),
    (10.0, 10, 5.0 + 0.5 * 6.0, 0.5, 12.0, -10.0),
    (11.0, 11, 6.0, 1.0, 12.0, -11.0),
]


@pytest.mark.parametrize(
    ("n_step", "expected"), [(1, ONE_STEP), (3, THREE_STEPS)], ids=["one step", "three steps"]
)
def test_transitions(make_replay, n_step, expected):
    replay = make_replay(ReplaySpec(Transitions(n_step, 0.5), batch_size=8, max_size=100))
    play_one(replay.adder(), ONE, TWO)
    assert items_of(replay, 6) == expected


def test_a_transition_is_there_as_soon_as_its_last_reward_is(make_replay):
    replay = make_replay(ReplaySpec(Transitions(3, 0.5), batch_size=1, max_size=100))
    adder = replay.adder()
    held = []
    for t, timestep in enumerate(timesteps(ONE)):
        if t == 0:
            adder.add_first(timestep)
        else:
            action, extras = act(np.full(2, t - 1.0))
            adder.add(action, timestep, extras)
        replay.flush()
        held.append(len(replay))
    assert held == [0, 0, 0, 1, 4]


# observation, action, reward, discount, step type, mask, extras
FULL_WINDOW = (
    (0.0, 1.0, 2.0, 3.0),
    (0, 1, 2, 3),
    (1.0, 2.0, 3.0, 4.0),
    (1.0, 1.0, 1.0, 0.0),
    (0, 1, 1, 1),
    (1.0, 1.0, 1.0, 1.0),
    (0.0, -1.0, -2.0, -3.0),
)
LAST_WINDOW = (
    (2.0, 3.0, 4.0, 0.0),
    (2, 3, 0, 0),
    (3.0, 4.0, 0.0, 0.0),
    (1.0, 0.0, 0.0, 0.0),
    (1, 1, 2, 2),
    (1.0, 1.0, 1.0, 0.0),
    (-2.0, -3.0, 0.0, 0.0),
)
SHORT_WINDOW = (
    (10.0, 11.0, 12.0, 0.0),
    (10, 11, 0, 0),
    (5.0, 6.0, 0.0, 0.0),
    (1.0, 1.0, 0.0, 0.0),
    (0, 1, 2, 2),
    (1.0, 1.0, 1.0, 0.0),
    (-10.0, -11.0, 0.0, 0.0),
)


def test_sequences_overlap_and_are_padded(make_replay):
    replay = make_replay(ReplaySpec(Sequences(4, period=2), batch_size=4, max_size=100))
    play_one(replay.adder(), ONE, TWO)
    assert items_of(replay, 3) == [FULL_WINDOW, LAST_WINDOW, SHORT_WINDOW]


@pytest.mark.parametrize(
    ("length", "period", "starts"),
    [
        (3, 1, [0.0, 1.0, 2.0, 10.0]),
        (3, 2, [0.0, 2.0, 10.0]),
        (3, 3, [0.0, 3.0, 10.0]),
        (2, 1, [0.0, 1.0, 2.0, 3.0, 10.0, 11.0]),
        (5, 5, [0.0, 10.0]),
        (8, 4, [0.0, 10.0]),
        (1, 1, [0.0, 1.0, 2.0, 3.0, 4.0, 10.0, 11.0, 12.0]),
    ],
)
def test_every_row_of_an_episode_is_in_a_sequence(make_replay, length, period, starts):
    replay = make_replay(ReplaySpec(Sequences(length, period), batch_size=8, max_size=100))
    play_one(replay.adder(), ONE, TWO)
    items = items_of(replay, len(starts))
    assert [item[0][0] for item in items] == starts
    seen = {o for item in items for o, m in zip(item[0], item[5], strict=True) if m}
    assert seen == {0, 1, 2, 3, 4, 10, 11, 12}


def test_episodes_are_whole(make_replay):
    replay = make_replay(ReplaySpec(Episodes(max_length=5), batch_size=4, max_size=100))
    play_one(replay.adder(), ONE, TWO)
    whole, short = items_of(replay, 2)
    assert whole == (
        (0.0, 1.0, 2.0, 3.0, 4.0),
        (0, 1, 2, 3, 0),
        (1.0, 2.0, 3.0, 4.0, 0.0),
        (1.0, 1.0, 1.0, 0.0, 0.0),
        (0, 1, 1, 1, 2),
        (1.0, 1.0, 1.0, 1.0, 1.0),
        (0.0, -1.0, -2.0, -3.0, 0.0),
    )
    assert short[0] == (10.0, 11.0, 12.0, 0.0, 0.0)
    assert short[4:6] == ((0, 1, 2, 2, 2), (1.0, 1.0, 1.0, 0.0, 0.0))


# The first has 0 to 3, the second 3 to 11, across the end of the first episode.
ROLLOUTS = [
    (
        (0.0, 1.0, 2.0, 3.0),
        (0, 1, 2, 0),
        (1.0, 2.0, 3.0, 0.0),
        (1.0, 1.0, 1.0, 0.0),
        (0, 1, 1, 1),
        (1.0, 1.0, 1.0, 1.0),
        (0.0, -1.0, -2.0, 0.0),
    ),
    (
        (3.0, 4.0, 10.0, 11.0),
        (3, 0, 10, 0),
        (4.0, 0.0, 5.0, 0.0),
        (0.0, 0.0, 1.0, 0.0),
        (1, 2, 0, 1),
        (1.0, 1.0, 1.0, 1.0),
        (-3.0, 0.0, -10.0, 0.0),
    ),
]


def test_rollouts_run_across_episodes_and_come_once(make_replay):
    replay = make_replay(ReplaySpec(Rollouts(3), batch_size=1, max_size=2), num_envs=1)
    adder = replay.adder()
    rows = [t for episode in (ONE, TWO) for t in timesteps(episode)]
    batches = []
    for t, timestep in enumerate(rows):
        timestep = dm_env.TimeStep(*(np.asarray(field)[np.newaxis] for field in timestep))
        if t == 0:
            adder.add_first(timestep)
        else:
            action, extras = act(before.observation)  # noqa: F821
            adder.add(action, timestep, extras)
        replay.flush()
        if replay.can_sample():
            assert t in (3, 6)
            batches.append(contents(replay.sample().data, 0))
            assert not replay.can_sample()
        assert replay.can_insert()
        before = timestep  # noqa: F841
    assert batches == ROLLOUTS


@pytest.mark.parametrize(("num_envs", "batch_size"), [(2, 4), (4, 2), (2, 3), (3, 2)])
def test_a_batch_of_rollouts_is_of_any_size(make_replay, num_envs, batch_size):
    replay = make_replay(ReplaySpec(Rollouts(2), batch_size, max_size=100), num_envs=num_envs)
    adder = replay.adder()
    streams = [timesteps(Episode(100 * stream, (1.0,) * 40)) for stream in range(num_envs)]
    windows: list[list[list[float]]] = [[] for _ in streams]
    for t, rows in enumerate(zip(*streams, strict=True)):
        timestep = dm_env.TimeStep(*(np.stack(field) for field in zip(*rows, strict=True)))
        if t == 0:
            adder.add_first(timestep)
        else:
            action, extras = act(before.observation)  # noqa: F821
            adder.add(action, timestep, extras)
        replay.flush()
        while replay.can_sample():
            observation = replay.sample().data.observation[..., 0]
            assert observation.shape == (batch_size, 3)
            for window in observation.tolist():
                windows[int(window[0]) // 100].append(window)
        before = timestep  # noqa: F841
    for stream, found in enumerate(windows):
        first = 100.0 * stream
        expected = [[first + t, first + t + 1, first + t + 2] for t in range(0, 40, 2)]
        assert found == expected[: len(found)]
    assert sum(map(len, windows)) > num_envs * 20 - batch_size


@pytest.mark.parametrize(("length", "burn_in"), [(8, 3), (5, 3), (4, 0), (3, 1)])
def test_every_action_is_learned_from_once_behind_a_burn_in(make_replay, length, burn_in):
    item = Sequences(length, period=length - 1 - burn_in)
    replay = make_replay(ReplaySpec(item, batch_size=8, max_size=1000))
    episodes = [Episode(100 * i, (1.0,) * number) for i, number in enumerate((1, 2, 3, 7, 12, 20))]
    play_one(replay.adder(), *episodes)
    windows = {}
    for _ in range(100):
        sample = replay.sample()
        for i, key in enumerate(sample.info.keys.tolist()):
            windows[key] = jax.tree.map(lambda x, i=i: x[i], sample.data)
        if len(windows) == len(replay):
            break
    actions = collections.Counter()
    for data in windows.values():
        learned = masks.learned_steps(data.step_type, data.mask, burn_in)
        assert learned.sum() > 0  # No window is drawn for nothing.
        actions.update(data.action[np.asarray(learned) == 1].tolist())
    assert actions == {
        episode.first + t: 1 for episode in episodes for t in range(len(episode.rewards))
    }


def test_streams_do_not_mix(make_replay):
    three = Episode(first=20, rewards=(7.0,))
    four = Episode(first=30, rewards=(8.0, 9.0, 1.0, 1.0, 1.0, 1.0), terminates=False)
    replay = make_replay(ReplaySpec(Transitions(3, 0.5), batch_size=16, max_size=100), num_envs=3)
    play_vector(replay.adder(), [ONE, TWO], [three, TWO, ONE], [four, four])
    # Eight rows of each: the first stream ends with its second episode, the second has 0, 1 and 2
    # of its third, of which no window is complete, the third the whole of its first and one row.
    assert items_of(replay, 6 + 3 + 6) == sorted(
        [
            *THREE_STEPS,
            (20.0, 20, 7.0, 0.0, 21.0, -20.0),
            *THREE_STEPS[4:],
            (30.0, 30, 8.0 + 0.5 * 9.0 + 0.25, 0.25, 33.0, -30.0),
            (31.0, 31, 9.0 + 0.5 + 0.25, 0.25, 34.0, -31.0),
            (32.0, 32, 1.75, 0.25, 35.0, -32.0),
            (33.0, 33, 1.75, 0.25, 36.0, -33.0),
            (34.0, 34, 1.5, 0.5, 36.0, -34.0),
            (35.0, 35, 1.0, 1.0, 36.0, -35.0),
        ]
    )


def test_the_oldest_make_room(make_replay):
    replay = make_replay(ReplaySpec(Transitions(1), batch_size=4, max_size=4))
    play_one(replay.adder(), ONE, TWO)
    assert items_of(replay, 4) == ONE_STEP[2:]
    assert replay.inserted == 6


def test_what_is_incomplete_is_dropped_by_reset(make_replay):
    replay = make_replay(ReplaySpec(Transitions(3, 0.5), batch_size=8, max_size=100))
    adder = replay.adder()
    play_one(adder, ONE)
    first, *rest = timesteps(Episode(first=40, rewards=(1.0,) * 4))
    adder.add_first(first)
    adder.add(*act_and(rest[0], first))
    adder.add(*act_and(rest[1], rest[0]))
    adder.reset()
    play_one(adder, TWO)
    assert items_of(replay, 6) == THREE_STEPS


def act_and(timestep: dm_env.TimeStep, before: dm_env.TimeStep) -> tuple:
    action, extras = act(before.observation)
    return action, timestep, extras


STACK = 3
STACKED = SPEC._replace(observations=StackedArray((STACK, 2), np.uint8, 0, 255, STACK, axis=0))


def stacked(timesteps: list[dm_env.TimeStep]) -> list[dm_env.TimeStep]:
    """The time steps of consecutive episodes with stacks of frames for observations."""
    result: list[dm_env.TimeStep] = []
    for timestep in timesteps:
        frames = [timestep.observation.astype(np.uint8)] * STACK
        if timestep.step_type != StepType.FIRST:
            frames = [*result[-1].observation[1:], frames[0]]
        result.append(timestep._replace(observation=np.stack(frames)))
    return result


@pytest.mark.parametrize("item", [Transitions(2, 0.5), Sequences(4, 2), Episodes(6), Rollouts(4)])
def test_stacks_are_put_together_again(make_replay, item):
    """Each frame stands for its row: 1 to 6, 11 to 12 and 21 to 24 are the episodes."""
    episodes = (Episode(1, (1.0,) * 5), Episode(11, (1.0,)), Episode(21, (1.0,) * 3))
    expected = {0: [0, 0, 0]}
    for episode in episodes:
        last = episode.first + len(episode.rewards)
        for row in range(episode.first, last + 1):
            expected[row] = [max(episode.first, row - 2 + k) for k in range(STACK)]
    steps = stacked([t for episode in episodes for t in timesteps(episode)])
    batch = 1 if isinstance(item, Rollouts) else 8
    replay = make_replay(ReplaySpec(item, batch, max_size=100), 1, STACKED)
    adder, seen = replay.adder(), set()

    def check(observation: np.ndarray) -> None:
        for stack in observation.reshape(-1, STACK, 2):
            np.testing.assert_array_equal(stack[:, 0], stack[:, 1])
            assert stack[:, 0].tolist() == expected[stack[-1, 0]]
            seen.add(int(stack[-1, 0]))

    for t, timestep in enumerate(steps):
        vector = dm_env.TimeStep(*(np.asarray(field)[np.newaxis] for field in timestep))
        if t == 0:
            adder.add_first(vector)
        else:
            action, extras = act(steps[t - 1].observation[np.newaxis, -1])
            adder.add(action, vector, extras)
        if isinstance(item, Rollouts):
            replay.flush()
            if replay.can_sample():
                sample = replay.sample()
                check(sample.data.observation)
    if isinstance(item, Rollouts):
        assert seen == {1, 2, 3, 4, 5, 6, 11, 12, 21}
        check_shapes(replay, sample)
        return
    for _ in range(40):
        sample = replay.sample()
        data = sample.data
        check(data.observation)
        if isinstance(item, Transitions):
            check(data.next_observation)
    assert seen - {0} == expected.keys() - {0}
    check_shapes(replay, sample)


def check_shapes(replay: Any, sample: Any) -> None:
    """What a replay says that it will give is what it gives."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), sample)
    assert replay.sample_shapes() == shapes
