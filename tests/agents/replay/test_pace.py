import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from troupe.agents.replay import ReplaySpec, Transitions
from troupe.agents.replay.pace import Pace

ZOO = ReplaySpec(
    Transitions(),
    batch_size=64,
    max_size=100_000,
    min_size=1000,
    samples_per_insert=128 * 64 / 256,
)


def test_no_pace_waits_for_the_first_items_only():
    pace = Pace(dataclasses.replace(ZOO, samples_per_insert=None))
    assert not pace.can_sample(999, 999, 0, 64)
    assert pace.can_sample(1000, 1000, 10**9, 64)
    assert pace.can_insert(10**9, 0)


def test_the_learner_never_draws_ahead():
    pace = Pace(ZOO, steps_per_sample=128)
    draw = 128 * 64
    assert not pace.can_sample(1255, 1255, 0, draw)
    assert pace.can_sample(1256, 1256, 0, draw)
    assert not pace.can_sample(1256, 1256, draw, draw)
    assert pace.can_sample(1512, 1512, draw, draw)


def test_actors_are_held_when_the_learner_is_behind():
    pace = Pace(dataclasses.replace(ZOO, tolerance=16384), steps_per_sample=128)
    assert pace.can_insert(1512, 0)
    assert not pace.can_insert(1513, 0)
    assert pace.can_insert(1513, 64)


def test_actors_are_ahead_by_one_dispatch_and_a_batch():
    pace = Pace(ZOO, steps_per_sample=128)
    assert pace.can_insert(1258, 0)
    assert not pace.can_insert(1259, 0)
    few = dataclasses.replace(ZOO, min_size=1)
    assert Pace(few).tolerance == 2 * 64


def test_a_pace_that_comes_to_a_halt_is_refused():
    with pytest.raises(ValueError, match=r"tolerance is 8000.*128 batches of 64.* at least 8192"):
        Pace(dataclasses.replace(ZOO, tolerance=8000), steps_per_sample=128)


@given(
    ratio=st.floats(0.25, 64.0),
    batch=st.integers(1, 64),
    steps=st.integers(1, 16),
    envs=st.integers(1, 9),
    min_size=st.integers(1, 500),
    room=st.floats(1.0, 3.0),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_neither_side_waits_for_ever_and_the_ratio_is_kept(
    ratio, batch, steps, envs, min_size, room
):
    wanted = batch * steps
    spec = ReplaySpec(
        Transitions(), batch, 10**6, min_size, samples_per_insert=ratio, tolerance=room * wanted
    )
    pace, inserted, sampled = Pace(spec, steps), 0, 0
    for _ in range(400):
        may_insert = pace.can_insert(inserted, sampled)
        may_sample = pace.can_sample(inserted, inserted, sampled, wanted)
        assert may_insert or may_sample
        if may_sample:
            sampled += wanted
        else:
            inserted += envs
    assert sampled <= max(0.0, (inserted - min_size) * ratio)
    assert pace.debt(inserted, sampled) < wanted + envs * ratio or inserted < min_size
