"""Streams that wait for the others of their environment: none of it is experience."""

import itertools

import dm_env
import numpy as np
import pytest
from dm_env import StepType

from troupe.agents.replay import EmbeddedReplay, ReplaySpec, Rollouts, Sequences, Transitions
from troupe.agents.replay.offline import history

from .episodes import (
    EXTRAS,
    ONE,
    SPEC,
    TWO,
    ChunkedReplay,
    ServedReplay,
    Wait,
    items_of,
    play_one,
    play_vector,
    timesteps,
)

STREAMS = ([ONE, TWO], [TWO, Wait(2), TWO])


@pytest.fixture(
    params=["embedded", "chunks", pytest.param("reverb", marks=pytest.mark.distributed)]
)
def make_replay(request):
    made = []

    def make(item, batch_size=1, max_size=100):
        spec = ReplaySpec(item, batch_size=batch_size, max_size=max_size)
        if request.param == "embedded":
            replay = EmbeddedReplay(spec, SPEC, EXTRAS, num_envs=2, seed=0)
        elif request.param == "chunks":
            replay = ChunkedReplay(spec, 2, SPEC)
        else:
            pytest.importorskip("reverb")
            replay = ServedReplay(spec, 2, SPEC)
        made.append(replay)
        return replay

    yield make
    for replay in made:
        replay.close()


def alone(item, *episodes):
    """The items of one stream that never waits."""
    replay = EmbeddedReplay(ReplaySpec(item, batch_size=4, max_size=100), SPEC, EXTRAS)
    play_one(replay.adder(), *episodes)
    return items_of(replay, len(replay))


@pytest.mark.parametrize("n_step", [1, 2, 3])
def test_no_transition_begins_or_ends_in_a_wait(make_replay, n_step):
    item = Transitions(n_step, 0.5)
    replay = make_replay(item, batch_size=10)
    play_vector(replay.adder(), *STREAMS)
    found = items_of(replay, 10)
    assert len(found) == 4 + 2 + 2 + 2
    assert sorted(found) == sorted([*alone(item, ONE, TWO), *alone(item, TWO, TWO)])


def test_rollouts_mask_the_rows_that_wait(make_replay):
    replay = make_replay(Rollouts(7), batch_size=2, max_size=2)
    play_vector(replay.adder(), *STREAMS)
    data = replay.sample().data
    first, second = np.argsort(data.observation[:, 0, 0])
    assert data.mask[first].all()
    assert data.mask[second].tolist() == [1, 1, 1, 0, 0, 1, 1, 1]
    assert data.step_type[second].tolist() == [0, 1, 2, 2, 2, 0, 1, 2]
    assert data.reward[second].tolist() == [5, 6, 0, 0, 0, 5, 6, 0]
    assert data.action[second].tolist() == [10, 11, 0, 0, 0, 10, 11, 0]


def test_sequences_hold_no_wait(make_replay):
    item = Sequences(3, 2)
    replay = make_replay(item, batch_size=4)
    play_vector(replay.adder(), *STREAMS)
    expected = [*alone(item, ONE, TWO), *alone(item, TWO, TWO)]
    assert sorted(items_of(replay, len(expected))) == sorted(expected)


def test_first_follows_first_of_streams_that_wait_and_of_no_other():
    replay = EmbeddedReplay(ReplaySpec(Transitions(1), 1, 100), SPEC, EXTRAS, num_envs=1)
    begins, waits = timesteps(ONE)[0], timesteps(Wait(1))[0]
    begins, waits = (
        dm_env.TimeStep(*(np.asarray(field)[np.newaxis] for field in row))
        for row in (begins, waits)
    )
    adder, action = replay.adder(), (np.zeros(1, np.int32), {"log_prob": np.zeros(1, np.float32)})
    adder.add_first(waits)
    adder.add(action[0], waits, action[1])
    adder.add(action[0], begins, action[1])
    with pytest.raises(ValueError, match="must be FIRST, and no other"):
        adder.add(action[0], begins, action[1])
    assert len(replay) == 0


def test_data_of_a_replay_has_whole_episodes_alone():
    item = Sequences(3, 2)
    replay = EmbeddedReplay(ReplaySpec(item, 4, 100), SPEC, EXTRAS, num_envs=2)
    play_vector(replay.adder(), *STREAMS)
    dataset = history.of_replay(replay.save(), item, SPEC.observations, SPEC.actions, "here")
    starts = np.flatnonzero(np.asarray(dataset.step_type) == StepType.FIRST)
    lengths = [b - a for a, b in itertools.pairwise([*starts, len(dataset.step_type)])]
    assert sorted(lengths) == [3, 3, 3, 5]
