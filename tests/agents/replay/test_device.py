"""The replay on a device beside the embedded one, and what only a compiled program has."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from troupe.agents.replay import (
    EmbeddedReplay,
    Episodes,
    ReplaySpec,
    Rollouts,
    Sequences,
    Transitions,
)
from troupe.agents.replay.device import DeviceReplay, sum_tree
from troupe.environments.specs import StackedArray

from .episodes import SPEC as FLAT
from .episodes import DeviceReplayOnHost
from .test_naive import EXTRAS, FRAME, STACK, Stream, answer, stack_steps

SPEC = FLAT._replace(
    observations={
        "number": specs.Array((), np.int32),  # A device has no 64 bits.
        "stack": StackedArray((FRAME[0], STACK, FRAME[1]), np.uint8, 0, 255, STACK, axis=-2),
    },
    actions=(specs.Array((2,), np.float32), specs.Array((), np.int32)),
)
LENGTHS = ([4, 1, 7], [3, 9], [2])


def play(replays, steps: int, streams: int = 3, after=lambda: None) -> None:
    """Plays the same episodes of several streams into several replays."""
    played = [Stream(LENGTHS[i % 3], 1000 * i) for i in range(streams)]
    adders = [replay.adder() for replay in replays]
    before = None
    for _ in range(steps):
        timestep = stack_steps([stream.next() for stream in played])
        timestep.observation["number"] = timestep.observation["number"].astype(np.int32)
        for adder in adders:
            if before is None:
                adder.add_first(timestep)
            else:
                action, extras = answer(before.observation["number"])
                adder.add(action, timestep, extras)
        before = timestep
        after()


def both(spec: ReplaySpec, streams: int = 3):
    embedded = EmbeddedReplay(spec, SPEC, EXTRAS, num_envs=streams)
    return embedded, DeviceReplayOnHost(spec, streams, SPEC, EXTRAS)


def held(replay, keys) -> list:
    """Items by key, of either, as they are gathered."""
    if isinstance(replay, EmbeddedReplay):
        return replay._windows.gather(np.asarray(keys) % replay._entries.max_size)
    functions, state = replay.functions, replay.state
    slots = np.asarray(keys) % functions._table.size
    columns = {name: column[slots] for name, column in state.items.columns.items()}
    return functions._windows.gather(functions._ring, state.rows, columns)


def drawn(replay, batches: int):
    """Many batches as one."""
    return jax.tree.map(
        lambda *leaves: np.concatenate(leaves), *(replay.sample() for _ in range(batches))
    )


@pytest.mark.parametrize("steps", [35, 120])
@pytest.mark.parametrize(
    "item",
    [Transitions(1), Transitions(3, 0.9), Sequences(4, 2), Sequences(3, 3), Episodes(10)],
    ids=lambda item: type(item).__name__ + str(dataclasses.astuple(item)),
)
def test_items_are_the_embedded_replays_under_the_same_keys(item, steps):
    """Of the first steps all, of more the newest, where rows and table have wrapped around."""
    spec = ReplaySpec(item, batch_size=4, max_size=40)
    embedded, device = both(spec)
    play((embedded, device), steps)
    entries, items = embedded._entries, device.state.items
    assert int(items.next) == entries.next > 0
    first = int(items.first)
    # Rows on a device are as many as ordinary episodes need, and these are short.
    assert entries.first <= first <= entries.first + 12
    keys = np.arange(first, entries.next)
    for mine, other in zip(
        jax.tree.leaves(held(device, keys)), jax.tree.leaves(held(embedded, keys)), strict=True
    ):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(mine, other, rtol=1e-6)


def test_rollouts_are_taken_once_each_in_order():
    spec = ReplaySpec(Rollouts(4), batch_size=3, max_size=3)
    embedded, device = both(spec)
    seen = []

    def learn():
        assert device.can_sample() == embedded.can_sample()
        assert device.can_insert() == embedded.can_insert()
        if embedded.can_sample():
            mine, other = device.sample(), embedded.sample()
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b), mine, other)
            seen.extend(mine.info.keys.tolist())

    play((embedded, device), 60, after=learn)
    assert seen == list(range(3 * 14))


@pytest.mark.parametrize(("streams", "length", "batch_size"), [(1, 1, 1), (3, 4, 3), (8, 2, 3)])
def test_rings_hold_all_rows_of_a_queue_that_is_full(streams, length, batch_size):
    spec = ReplaySpec(Rollouts(length), batch_size=batch_size, max_size=batch_size)
    functions = DeviceReplay(spec, SPEC, EXTRAS, num_envs=streams)
    size = functions._table.size
    # All that a table has room for, in whole windows of every stream, and one window in the making.
    windows = -(-size // streams) + 1
    assert functions._ring.capacity - (functions._ring.depth - 1) > windows * length
    embedded, on_device = both(spec, streams)
    play((embedded, on_device), length * (size // streams) + 1, streams)
    assert len(on_device) == len(embedded) == size // streams * streams
    items = (held(replay, range(len(embedded))) for replay in (embedded, on_device))
    jax.tree.map(np.testing.assert_allclose, *items)


@pytest.mark.parametrize("ratio", [8.0, 0.25, 1.3])
def test_the_pace_is_the_embedded_replays(ratio):
    spec = ReplaySpec(
        Transitions(1), batch_size=4, max_size=50, min_size=10, samples_per_insert=ratio
    )
    embedded, device = both(spec)
    answers = []

    def learn():
        answers.append((embedded.can_sample(), embedded.can_insert()))
        assert (device.can_sample(), device.can_insert()) == answers[-1]
        for _ in range(3):
            if embedded.can_sample():
                assert device.can_sample()
                device.sample()
                embedded.sample()
        assert device.can_sample() == embedded.can_sample()

    play((embedded, device), 100, after=learn)
    assert len(set(answers)) > 1


def test_draws_are_uniform_over_what_is_held():
    device = both(ReplaySpec(Transitions(1), batch_size=30, max_size=30))[1]
    play((device,), 60)
    sample = drawn(device, 40)
    first, after = int(device.state.items.first), int(device.state.items.next)
    counts = np.bincount(sample.info.keys - first, minlength=after - first)
    assert len(counts) == len(device) <= 30
    assert counts.min() > 0.4 * 1200 / len(device)
    np.testing.assert_allclose(sample.info.probabilities, 1 / len(device), rtol=1e-6)
    assert (sample.info.size == len(device)).all()


def test_priorities_are_the_embedded_replays():
    spec = ReplaySpec(Transitions(1), batch_size=30, max_size=30, priority_exponent=0.6)
    embedded, device = both(spec)
    replays = (embedded, device)
    play(replays, 12)
    keys = np.array([3, 5, 5, -7, 9])
    for replay in replays:
        replay.update_priorities(keys, np.array([9.0, 0.0, 2.0, 4.0, 0.0]))
    play(replays, 4)  # Another beginning; new items have the largest priority of all.
    chances = []
    for replay in replays:
        info = drawn(replay, 70).info
        found = dict(zip(info.keys.tolist(), info.probabilities.tolist(), strict=True))
        shares = np.bincount(info.keys, minlength=60)[: max(found) + 1] / 2100
        expected = np.zeros(len(shares))
        for key, chance in found.items():
            expected[key] = chance
        np.testing.assert_allclose(shares, expected, atol=0.03)
        chances.append(found)
    assert chances[0].keys() == chances[1].keys()
    assert 9 not in chances[1]
    for key, chance in chances[1].items():
        assert chance == pytest.approx(chances[0][key], rel=1e-5)


def test_an_item_whose_rows_are_gone_is_never_drawn():
    """Episodes of one step: every other row begins no item, and rows run out before the table."""
    spec = ReplaySpec(Transitions(1), batch_size=400, max_size=400, priority_exponent=1.0)
    device = DeviceReplayOnHost(spec, 1, SPEC, EXTRAS)
    stream, before = Stream([1], 0), None
    for _ in range(1500):
        timestep = stack_steps([stream.next()])
        timestep.observation["number"] = timestep.observation["number"].astype(np.int32)
        if before is None:
            device.add_first(timestep)
        else:
            action, extras = answer(before.observation["number"])
            device.add(action, timestep, extras)
        before = timestep
    sample = device.sample()
    assert 200 < len(device) < 400
    assert sample.info.keys.min() >= int(device.state.items.first)
    found = sample.data.next_observation["number"] - sample.data.observation["number"]
    assert (found == 1).all()
    np.testing.assert_allclose(sample.info.probabilities, 1 / len(device), rtol=1e-4)


@pytest.mark.parametrize("size", [1, 5, 64, 1000])
def test_draws_of_the_tree_are_those_of_cumulative_sums(size):
    generator = np.random.default_rng(0)
    weights = generator.integers(1, 9, size).astype(np.float32)
    weights[generator.random(size) < 0.3] = 0.0
    weights[-1] = 1.0
    tree = sum_tree.set_weights(sum_tree.init(size), jnp.arange(size), jnp.asarray(weights))
    uniforms = generator.random((3, 200)).astype(np.float32)
    slots, probabilities = sum_tree.draw(tree, jnp.asarray(uniforms))
    sums = np.cumsum(weights)
    expected = sums.searchsorted(uniforms * sums[-1], side="right")
    np.testing.assert_array_equal(slots, expected)
    np.testing.assert_allclose(probabilities, weights[expected] / sums[-1], rtol=1e-6)
    ends, _ = sum_tree.draw(tree, jnp.array([0.0, 1.0 - 2.0**-24]))
    assert (weights[np.asarray(ends)] > 0).all()


def test_in_a_loop_rows_are_written_in_place():
    """A loop that adds and draws needs little more memory than one replay."""
    functions = DeviceReplay(
        ReplaySpec(Transitions(1), batch_size=8, max_size=50_000), FLAT, num_envs=4
    )
    import dm_env

    def step(state, number):
        observation = jnp.full((4, 2), number, jnp.float32)
        timestep = dm_env.TimeStep(
            jnp.ones(4, jnp.int32), number * jnp.ones(4), jnp.ones(4), observation
        )
        state = functions.add(state, jnp.zeros(4, jnp.int32), timestep)
        state, sample = functions.sample(state, jax.random.key(0))
        return state, sample.data.reward.sum()

    def run(state):
        return jax.lax.scan(step, state, jnp.arange(10.0))

    state = jax.eval_shape(functions.init)
    analysis = jax.jit(run, donate_argnums=0).lower(state).compile().memory_analysis()
    assert functions.num_bytes == pytest.approx(analysis.argument_size_in_bytes, rel=0.01)
    assert analysis.temp_size_in_bytes < 0.1 * functions.num_bytes


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (ReplaySpec(Transitions(3), batch_size=2, max_size=8), "max_size is 8.*at least"),
        (
            ReplaySpec(
                Transitions(1), 2, 10**9, min_size=10**9, samples_per_insert=1000.1, tolerance=1e12
            ),
            "simpler ratio",
        ),
    ],
)
def test_what_a_device_cannot_keep_is_refused(spec, words):
    with pytest.raises(ValueError, match=words):
        DeviceReplay(spec, FLAT, num_envs=4)
