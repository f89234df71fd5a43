"""What only the embedded replay promises."""

from __future__ import annotations

import itertools
import resource
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

from troupe.agents.interfaces import Adder
from troupe.agents.replay import (
    EmbeddedReplay,
    Episodes,
    Replay,
    ReplaySpec,
    Rollouts,
    Sequences,
    Transitions,
)
from troupe.environments.specs import EnvironmentSpec, StackedArray

from .numbers import NUMBERS, fill


def make(**changes: Any) -> EmbeddedReplay:
    options = {"item": Transitions(2), "batch_size": 4, "max_size": 50, **changes}
    return EmbeddedReplay(ReplaySpec(**options), NUMBERS, seed=3)


def assert_equal(one: Any, other: Any) -> None:
    for a, b in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def leaves(nest: Any) -> list[np.ndarray]:
    if isinstance(nest, tuple):
        return [leaf for part in nest for leaf in leaves(part)]
    return [nest]


def test_it_is_a_replay_and_its_adder_an_adder():
    replay = make()
    assert isinstance(replay, Replay)
    assert isinstance(replay.adder(), Adder)


@pytest.mark.parametrize("exponent", [None, 0.7])
def test_a_seed_repeats_the_draws(exponent):
    one, other = make(priority_exponent=exponent), make(priority_exponent=exponent)
    for replay in (one, other):
        fill(replay, 120)
    for k in (None, 3, None):
        a, b = one.sample(k), other.sample(k)
        assert_equal(a, b)
        if exponent:
            for replay in (one, other):
                replay.update_priorities(a.info.keys, np.arange(a.info.keys.size) + 0.5)
    reseeded = EmbeddedReplay(one.spec, NUMBERS, seed=4)
    fill(reseeded, 120)
    assert reseeded.sample(8).info.keys.tolist() != other.sample(8).info.keys.tolist()


@pytest.mark.parametrize(
    ("item", "exponent", "steps"),
    [
        *itertools.product([Transitions(2), Sequences(3, 2)], [None, 0.7], [2, 33, 170]),
        (Rollouts(3), None, 2),
        (Rollouts(3), None, 3),
    ],
)
def test_a_saved_replay_goes_on_exactly(item, exponent, steps):
    changes = {"item": item, "priority_exponent": exponent}
    if isinstance(item, Rollouts):
        changes["batch_size"] = 1
    one, other = make(**changes), make(**changes)
    fill(one, steps)
    if exponent and one.can_sample():
        sample = one.sample(2)
        one.update_priorities(sample.info.keys, np.linspace(0.1, 9.0, 8))
    other.restore(one.save())
    for _ in range(3):
        assert (len(one), one.inserted, one.sampled) == (len(other), other.inserted, other.sampled)
        if one.can_sample():
            assert_equal(one.sample(), other.sample())
        one.reset_adder()  # As no environment goes on, what is incomplete is lost.
        for replay in (one, other):
            if replay.can_insert():
                fill(replay, 3 if isinstance(item, Rollouts) else 14, start=1000)


def test_what_was_saved_is_views():
    replay = make(max_size=10_000)
    fill(replay, 100)
    columns = replay.save()["rows"]["columns"]
    assert np.shares_memory(
        columns["observation"]["0"], replay._rows.columns["observation"][0].flat
    )
    assert len(columns["observation"]["0"]) == 120


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_size": 40}, "max_size"),
        ({"priority_exponent": 0.5}, "prioritised"),
    ],
)
def test_the_state_of_another_replay_is_refused(changes, message):
    replay = make()
    fill(replay, 20)
    with pytest.raises(ValueError, match=message):
        make(**changes).restore(replay.save())


def test_the_state_of_other_environments_is_refused():
    replay = make()
    fill(replay, 20)
    other = NUMBERS._replace(observations=specs.Array((2,), np.float32))
    with pytest.raises(ValueError, match="observation"):
        EmbeddedReplay(replay.spec, other).restore(replay.save())
    with pytest.raises(ValueError, match="as many environments"):
        EmbeddedReplay(replay.spec, NUMBERS, num_envs=2).restore(replay.save())


def test_batches_belong_to_the_caller_and_are_aligned():
    replay = make()
    fill(replay, 50)
    samples = [replay.sample(2) for _ in range(5)]
    copies = [[leaf.copy() for leaf in leaves(sample)] for sample in samples]
    fill(replay, 200)
    replay.sample(2)
    for sample, copy in zip(samples, copies, strict=True):
        for leaf, before in zip(leaves(sample), copy, strict=True):
            np.testing.assert_array_equal(leaf, before)
        for leaf in leaves(sample.data):
            assert leaf.flags.c_contiguous
            assert leaf.__array_interface__["data"][0] % 64 == 0


def test_priorities_decide_what_is_drawn():
    replay = make(item=Transitions(1), priority_exponent=2.0, max_size=4)
    fill(replay, 4)
    replay.update_priorities(np.arange(4), np.array([0.0, 1.0, 2.0, 3.0]))
    sample = replay.sample(5000)
    share = np.bincount(sample.info.keys.ravel(), minlength=4) / sample.info.keys.size
    np.testing.assert_allclose(share, np.array([0, 1, 4, 9]) / 14, atol=0.01)
    expected = (np.array([0, 1, 4, 9]) / 14)[sample.info.keys]
    np.testing.assert_allclose(sample.info.probabilities, expected, rtol=1e-6)
    np.testing.assert_array_equal(sample.info.size, 4)


def test_a_new_item_has_the_largest_priority_seen():
    replay = make(item=Transitions(1), priority_exponent=1.0, max_size=4)
    fill(replay, 4)
    replay.update_priorities(np.arange(4), np.array([0.5, 0.5, 8.0, 1.0]))
    replay.update_priorities(np.array([2]), np.array([1.0]))
    fill(replay, 1, start=100)
    sample = replay.sample(20)
    new = sample.info.keys == 4
    np.testing.assert_allclose(sample.info.probabilities[new], 8.0 / 10.5, rtol=1e-6)


def test_priorities_of_items_that_are_gone_are_ignored():
    replay = make(item=Transitions(1), priority_exponent=1.0, max_size=4, batch_size=4)
    fill(replay, 6)  # Keys 2 to 5 are held; 0 and 1 lay where 4 and 5 lie now.
    replay.update_priorities(np.array([0, 2, 1]), np.array([100.0, 3.0, 100.0]))
    sample = replay.sample(50)
    expected = np.where(sample.info.keys == 2, 3.0, 1.0) / 6.0
    np.testing.assert_allclose(sample.info.probabilities, expected, rtol=1e-6)


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_a_priority_that_is_none_is_refused(bad):
    replay = make(priority_exponent=1.0)
    fill(replay, 10)
    with pytest.raises(ValueError, match="priorities lie between"):
        replay.update_priorities(np.array([0, 1]), np.array([1.0, bad]))
    np.testing.assert_allclose(replay.sample(1).info.probabilities, 0.1, rtol=1e-6)


def test_importance_of_a_uniform_draw_is_one():
    replay = make()
    fill(replay, 30)
    info = replay.sample(2).info
    np.testing.assert_allclose(info.probabilities * info.size, 1.0, rtol=1e-6)


def test_the_dataset_gives_batches_without_end():
    replay = make()
    fill(replay, 30)
    for sample in itertools.islice(replay.dataset(2), 3):
        assert sample.data.reward.shape == (2, 4)
    assert replay.sampled == 24


def test_mistakes_of_the_caller_are_named():
    replay = make(min_size=20)
    with pytest.raises(ValueError, match="add_first must come before add"):
        replay.adder().add(np.int32(0), dm_env.transition(0.0, np.zeros(1)))
    with pytest.raises(ValueError, match=r"shape \(2,\) where its spec asks for \(1,\)"):
        replay.adder().add_first(dm_env.restart(np.zeros(2)))
    with pytest.raises(ValueError, match="must be FIRST"):
        replay.adder().add_first(dm_env.transition(0.0, np.zeros(1)))
    fill(replay, 10)
    with pytest.raises(ValueError, match="every episode begins with add_first"):
        replay.adder().add(np.int32(0), dm_env.transition(0.0, np.zeros(1)))
    with pytest.raises(ValueError, match="holds 10 items and needs 20"):
        replay.sample()
    with pytest.raises(ValueError, match="uniformly"):
        replay.update_priorities(np.array([0]), np.array([1.0]))


def test_mistakes_of_a_vector_are_named():
    replay = EmbeddedReplay(ReplaySpec(Transitions(), 4, 50), NUMBERS, num_envs=2)
    first = dm_env.TimeStep(
        np.zeros(2, np.int32), np.zeros(2), np.ones(2), np.zeros((2, 1), np.float32)
    )
    adder = replay.adder()
    with pytest.raises(ValueError, match="must be FIRST"):
        adder.add_first(first._replace(step_type=np.array([0, 1])))
    adder.add_first(first)
    with pytest.raises(ValueError, match="the step after LAST must be FIRST"):
        adder.add(np.zeros(2, np.int32), first)
    with pytest.raises(ValueError, match="action has a leaf of shape"):
        EmbeddedReplay(replay.spec, NUMBERS, num_envs=2).adder().add(np.zeros(3, np.int32), first)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"item": Rollouts(2), "batch_size": 1, "priority_exponent": 1.0}, "must be None"),
        ({"samples_per_insert": 1.0, "tolerance": 3.0}, "at least 4"),
    ],
)
def test_a_spec_that_cannot_work_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_a_full_queue_refuses_rows():
    replay = make(item=Rollouts(3), batch_size=1)
    fill(replay, 3)
    assert replay.can_sample()
    assert not replay.can_insert()
    with pytest.raises(ValueError, match="ask can_insert"):
        fill(replay, 1)
    assert replay.sample().data.observation[0, :, 0].tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("streams", "batch", "batches"), [(3, 2, 1), (2, 3, 1), (4, 2, 1), (3, 2, 2)]
)
def test_a_queue_holds_what_comes_until_it_is_full(streams, batch, batches):
    """The learner is as late as it may be: nothing is lost, and no row is refused before."""
    spec = ReplaySpec(Rollouts(2), batch, 100)
    replay = EmbeddedReplay(spec, NUMBERS, num_envs=streams, steps_per_sample=batches)
    adder, found = replay.adder(), []
    shape = np.ones(streams, np.int32)
    adder.add_first(dm_env.TimeStep(0 * shape, 0.0 * shape, 1.0 * shape, np.zeros((streams, 1))))
    for t in range(1, 61):
        observation = np.float32(t + 1000 * np.arange(streams))[:, np.newaxis]
        while not replay.can_insert():
            assert replay.can_sample(batches)
            data = replay.sample(batches).data.observation[..., 0]
            found += data.reshape(-1, 3).tolist()
        adder.add(shape, dm_env.TimeStep(shape, 1.0 * shape, 1.0 * shape, observation))
    expected = [
        [1000.0 * stream * (row > 0) + row for row in range(t, t + 3)]
        for t in range(0, 60, 2)
        for stream in range(streams)
    ]
    assert found == expected[: len(found)]
    assert len(found) > len(expected) - 3 * batch * batches - streams


def test_an_episode_longer_than_allowed_is_refused():
    replay = make(item=Episodes(4))
    with pytest.raises(ValueError, match="more than 4 rows"):
        fill(replay, 10)


def test_a_stack_that_is_none_is_refused():
    spec = EnvironmentSpec(
        StackedArray((2, 3), np.uint8, 0, 255, 3, axis=-1), specs.Array((), np.int32), None, None
    )
    adder = EmbeddedReplay(ReplaySpec(Transitions(), 4, 50), spec).adder()
    with pytest.raises(ValueError, match="the first one repeated"):
        adder.add_first(dm_env.restart(np.arange(6, dtype=np.uint8).reshape(2, 3)))


def test_frames_are_stored_once_and_memory_grows_with_use():
    """A million stacks of four 84x84 frames are 6.6 GiB of frames; 20,000 are written here."""
    shape, stack = (84, 84, 4), 4
    spec = EnvironmentSpec(
        StackedArray(shape, np.uint8, 0, 255, stack), specs.Array((), np.int32), None, None
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    replay = EmbeddedReplay(ReplaySpec(Transitions(), 4, 1_000_000, 1), spec, num_envs=8)
    arrays = [column for columns in replay._rows.columns.values() for column in columns]
    reserved = sum(column.flat.nbytes for column in arrays)
    reserved += sum(array.nbytes for array in replay._entries.columns.values())
    assert reserved < 7.2 * 2**30
    adder = replay.adder()
    observation = np.zeros((8, *shape), np.uint8)
    ones = np.ones(8, np.int32)
    adder.add_first(dm_env.TimeStep(0 * ones, 0.0 * ones, 1.0 * ones, observation))
    timestep = dm_env.TimeStep(ones, 1.0 * ones, 1.0 * ones, observation)
    steps = 20_000 // 8
    for _ in range(steps):
        adder.add(ones, timestep)
    used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert used < 1.25 * steps * 8 * 84 * 84 + 50e6


def test_a_replay_that_cannot_fit_is_refused():
    spec = NUMBERS._replace(observations=specs.Array((10**6,), np.float32))
    with pytest.raises(ValueError, match="choose a smaller max_size"):
        EmbeddedReplay(ReplaySpec(Transitions(), 4, 10**9), spec)
