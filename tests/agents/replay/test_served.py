"""The replay that many write to: what the golden items of `test_conformance` do not show."""

import contextlib
import itertools
import pickle
import threading

import dm_env
import jax
import numpy as np
import pytest

from troupe.agents.replay import EmbeddedReplay, ReplaySpec, Rollouts, Sequences, Transitions
from troupe.agents.replay.served import ServedReader, ServedWriter, SharedReplay
from troupe.agents.replay.served import shared as shared_replay
from troupe.environments.specs import EnvironmentSpec, StackedArray

from ...waiting import wait_for
from .episodes import EXTRAS, SPEC, Episode, act, play_one, play_vector, timesteps


class Lossy:
    """A server whose answers are lost now and then, after it has done what was asked."""

    def __init__(self, shared):
        self.shared, self._calls = shared, itertools.count()

    def __getattr__(self, name):
        def call(*arguments):
            answer = getattr(self.shared, name)(*arguments)
            if next(self._calls) % 2:
                raise TimeoutError("no answer")
            return answer

        return call


def episode(first, length):
    return Episode(first, tuple(float(first + t) for t in range(length)))


def spec(item=None, **more):
    fields = {"batch_size": 4, "max_size": 10_000, **more}
    return ReplaySpec(item or Transitions(1, 0.5), **fields)


@pytest.mark.parametrize("server", [lambda shared: shared, Lossy], ids=["sound", "lossy"])
def test_writers_at_their_own_speeds(server):
    shared = SharedReplay(spec(), SPEC, EXTRAS, num_envs=2, num_writers=3, steps_per_sample=3)
    writers = [ServedWriter(spec(), SPEC, EXTRAS, server(shared), num_envs=2) for _ in range(3)]
    lengths = {0: 40, 1000: 150, 2000: 7}

    def write(writer, first):
        streams = [[episode(first + 300 * i, lengths[first])] for i in (0, 1)]
        play_vector(writer.adder(), *streams)
        writer.flush()

    threads = [
        threading.Thread(target=write, args=pair) for pair in zip(writers, lengths, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shared.inserted == 2 * sum(lengths.values())  # Each once, though some came twice.
    reader = ServedReader(spec(), SPEC, EXTRAS, shared, steps_per_sample=3)
    seen = set()
    for _ in range(20):
        data = reader.sample(3).data
        assert data.reward.shape == (3, 4)
        start = data.observation[..., 0]
        np.testing.assert_array_equal(data.next_observation[..., 0], start + 1)
        np.testing.assert_array_equal(data.action, start.astype(np.int32))
        np.testing.assert_array_equal(data.reward, start)
        np.testing.assert_array_equal(data.extras["log_prob"], -start)
        seen |= {int(one) // 1000 for one in start.flat}
    assert seen == {0, 1, 2} or seen == {0, 1}  # Of the third there are few.
    for proxy in (reader, *writers):
        proxy.close()


def stacked_specs():
    observation = StackedArray((2, 3), np.float32, 0.0, 1e6, stack=3, axis=-1)
    return EnvironmentSpec(observation, SPEC.actions, SPEC.rewards, SPEC.discounts)


@pytest.mark.parametrize("item", [Transitions(2, 1.0), Sequences(4, 2)], ids=["pairs", "windows"])
def test_a_server_that_is_started_again_goes_on_with_whole_items(item):
    made = [spec(item), SPEC, EXTRAS]
    first, second = (SharedReplay(*made) for _ in range(2))
    writer = ServedWriter(*made, first)
    adder = writer.adder()
    rows = timesteps(episode(0, 30))
    adder.add_first(rows[0])
    for step, (before, timestep) in enumerate(itertools.pairwise(rows)):
        if step == 13:
            writer.flush()
            adder._server = second
        action, extras = act(before.observation)
        adder.add(action, timestep, extras)
    writer.flush()
    assert 0 < second.inserted < first.inserted + 30
    assert first.inserted + second.inserted < 30
    data = ServedReader(*made, second).sample().data
    start = data.observation[..., 0]
    assert start.reshape(4, -1)[:, 0].min() >= 13  # What began before is lost.
    if isinstance(item, Sequences):
        steps = np.diff(start, axis=1)
        assert np.all((steps == 1) | (data.mask[:, 1:] == 0))
        np.testing.assert_array_equal(data.reward, start * (data.step_type != 2) * data.mask)
    writer.close()


def test_frames_travel_once_and_are_stacked_again():
    made = [spec(batch_size=64), stacked_specs(), EXTRAS]
    shared = SharedReplay(*made, num_envs=None)
    writer = ServedWriter(*made, shared)
    adder = writer.adder()
    sent = []
    write = shared.write
    shared.write = lambda *arguments: sent.append(arguments[2]) or write(*arguments)
    for first, length in ((0, 70), (200, 40)):
        rows = timesteps(episode(first, length))
        stacks = [
            np.stack([rows[max(0, t - k)].observation for k in (2, 1, 0)], -1)
            for t in range(len(rows))
        ]
        rows = [row._replace(observation=s) for row, s in zip(rows, stacks, strict=True)]
        adder.add_first(rows[0])
        for before, timestep in itertools.pairwise(rows):
            action, extras = act(before.observation[..., -1])
            adder.add(action, timestep, extras)
    writer.flush()
    frames = [chunk.seen["observation"][0] for chunk in sent]
    assert sum(map(len, frames)) == 112
    assert {frame.shape[1:] for frame in frames} == {(2,)}
    data = ServedReader(*made, shared).sample().data
    newest = data.observation[:, 0, 2]
    begun = np.where(newest >= 200, 200, 0)
    for k in (1, 2):
        np.testing.assert_array_equal(data.observation[:, 0, 2 - k], np.maximum(newest - k, begun))
    writer.close()


def test_the_pace_holds_writers():
    paced = spec(min_size=8, samples_per_insert=1.0, tolerance=8.0)
    shared = SharedReplay(paced, SPEC, EXTRAS)

    class Enough(Exception):
        pass

    def give_up():
        raise Enough

    writer = ServedWriter(paced, SPEC, EXTRAS, shared, while_waiting=give_up)
    with pytest.raises(Enough):
        play_one(writer.adder(), episode(0, 100))
    writer.flush()
    assert 8 + 8 <= shared.inserted <= 8 + 8 + 2
    assert not shared.can_insert()
    reader = ServedReader(paced, SPEC, EXTRAS, shared)
    for _ in range(2):
        reader.sample()
    assert reader.observed_samples_per_insert <= 1.0
    assert shared.can_insert()
    reader.close()
    writer.close()


def test_actors_are_held_by_what_waits_for_the_learner():
    """It counts as drawn, but no parameters that actors could have are learned from it."""
    paced = spec(min_size=2, samples_per_insert=4.0)
    shared = SharedReplay(paced, SPEC, EXTRAS, num_writers=1, steps_per_sample=2)
    writer = ServedWriter(paced, SPEC, EXTRAS, shared)
    play_one(writer.adder(), episode(0, 5))
    writer.flush()
    assert shared.inserted == 5  # min_size, and 12 items to draw: a dispatch of 8 and a batch of 4.
    assert shared.can_insert()
    assert shared.draw(4, 0.0, rank=0).data.reward.shape == (2, 4)
    play_one(writer.adder(), episode(100, 1))
    writer.flush()
    assert shared.inserted == 6
    assert not shared.can_insert()
    # That another of the learner's processes draws says nothing of what this one has drawn.
    assert shared.draw(4, 0.0, rank=1) is not None
    assert not shared.can_insert()
    assert shared.draw(4, 0.0, rank=0) is None
    assert shared.can_insert()
    writer.close()


def test_a_queue_with_priorities_is_refused():
    queue = spec(Rollouts(5), batch_size=6, max_size=6, priority_exponent=1.0)
    with pytest.raises(ValueError, match="must be None"):
        SharedReplay(queue, SPEC, EXTRAS, num_envs=2)


def test_each_rollout_is_drawn_once_whoever_wrote_it():
    made = [spec(Rollouts(5), batch_size=6, max_size=6), SPEC, EXTRAS]
    shared = SharedReplay(*made, num_envs=2, num_writers=2)
    reader = ServedReader(*made, shared)
    writers = [ServedWriter(*made, shared, num_envs=2) for _ in range(2)]

    def write(writer, first):
        play_vector(writer.adder(), [episode(first, 60)], [episode(first + 100, 60)])

    threads = [
        threading.Thread(target=write, args=pair, daemon=True)
        for pair in zip(writers, (0, 1000), strict=True)
    ]
    for thread in threads:
        thread.start()
    starts = [one for _ in range(8) for one in reader.sample().data.observation[:, 0, 0].tolist()]
    assert sorted(starts) == sorted(
        first + 5 * k for first in (0, 100, 1000, 1100) for k in range(12)
    )
    for thread in threads:
        thread.join()
    for proxy in (reader, *writers):
        proxy.close()


@pytest.mark.parametrize("exponent", [None, 0.6], ids=["uniform", "prioritised"])
def test_what_is_restored_draws_as_it_would_have(exponent):
    made = [spec(priority_exponent=exponent, max_size=50), SPEC, EXTRAS]
    one = SharedReplay(*made, num_envs=2, num_writers=2, seed=3)
    writers = [ServedWriter(*made, one, num_envs=2) for _ in range(2)]
    for writer, first in zip(writers, (0, 1000), strict=True):
        play_vector(writer.adder(), [episode(first, 30)], [episode(first + 100, 30)])
        writer.flush()
    if exponent is not None:
        one.update_priorities(np.arange(100, 120), np.linspace(0.1, 5.0, 20))
    other = SharedReplay(*made, num_envs=2, num_writers=1, seed=4)
    other.restore(one.save())
    assert other.numbers() == one.numbers()
    for _ in range(3):
        ours, theirs = one.draw(4, 0.0), other.draw(4, 0.0)
        np.testing.assert_array_equal(ours.info.keys, theirs.info.keys)
        np.testing.assert_array_equal(ours.data.observation, theirs.data.observation)
    writer = ServedWriter(*made, other, num_envs=2)  # Another than those that wrote what there is.
    play_vector(writer.adder(), [episode(3000, 60)], [episode(4000, 60)])
    writer.flush()
    assert other.draw(4, 0.0).data.observation.min() >= 3000
    writer.close()
    for writer in writers:
        writer.close()


def test_rollouts_that_a_checkpoint_brings_back_are_not_drawn_again():
    """The server is killed; the learner, who was given some after the checkpoint, goes on."""
    made = [spec(Rollouts(2), batch_size=2), SPEC, EXTRAS]
    one = SharedReplay(*made, num_envs=8, num_writers=1)
    writer = ServedWriter(*made, one, num_envs=8)
    threading.Thread(
        target=play_vector,
        args=(writer.adder(), *([episode(100 * i, 30)] for i in range(8))),
        daemon=True,
    ).start()
    assert one.draw(2, 9.0).info.keys.tolist() == [[0, 1]]
    wait_for(lambda: len(one) == 6)
    saved = pickle.loads(pickle.dumps(one.save()))
    assert one.draw(2, 9.0, 1, 2).info.keys.tolist() == [[2, 3]]
    for drawn, first in ((0, 2), (4, 4), (9, 8)):  # A learner that begins anew has none of them.
        other = SharedReplay(*made, num_envs=8, num_writers=1)
        other.restore(saved)
        found = other.draw(2, 0.0, 1, drawn)
        assert (found is None) == (first == 8)
        assert found is None or found.info.keys.tolist() == [[first, first + 1]]
        assert other.numbers()[2] == other.numbers()[1] - len(other)
        if found is None:  # What comes now is not of those, whatever its key.
            more = ServedWriter(*made, other, num_envs=8)
            threading.Thread(
                target=play_vector,
                args=(more.adder(), *([episode(100 * i, 30)] for i in range(8))),
                daemon=True,
            ).start()
            assert other.draw(2, 9.0, 1, drawn).info.keys.tolist() == [[8, 9]]
            more.close()
    writer.close()


def test_as_many_batches_are_drawn_as_the_pace_allows():
    paced = spec(min_size=2, samples_per_insert=4.0, tolerance=1000.0)
    shared = SharedReplay(paced, SPEC, EXTRAS, num_writers=1, steps_per_sample=2)
    writer = ServedWriter(paced, SPEC, EXTRAS, shared)
    play_one(writer.adder(), episode(0, 12))
    writer.flush()
    assert shared.draw(4, 0.0, 3).data.reward.shape == (6, 4)
    assert shared.draw(4, 0.0, 3).data.reward.shape == (4, 4)
    assert shared.draw(4, 0.0, 3) is None
    assert shared.numbers() == (12, 12, 40)
    writer.close()


def test_what_ends_the_sender_is_raised_to_who_writes():
    class Broken:
        def write(self, *arguments):
            raise RuntimeError("out of memory")

    writer = ServedWriter(spec(), SPEC, EXTRAS, Broken())
    with pytest.raises(RuntimeError, match="nothing can be written: out of memory"):
        play_one(writer.adder(), episode(0, 300))
    writer.close()


@pytest.mark.parametrize("item", [Transitions(2, 0.5), Sequences(4, 2)], ids=["steps", "sequences"])
@pytest.mark.parametrize("exponent", [None, 0.6])
def test_an_embedded_replay_goes_on_as_a_shared_one_and_back(item, exponent):
    """Its ring of rows has gone round before, so that rows are not where they were written."""
    made = spec(item, max_size=60, priority_exponent=exponent)
    embedded = EmbeddedReplay(made, SPEC, EXTRAS, num_envs=2, seed=3)
    play_vector(embedded.adder(), *([episode(500 * i, 400)] for i in (0, 1)))
    shared = SharedReplay(made, SPEC, EXTRAS, num_envs=2, num_writers=1, seed=4)
    shared.restore(embedded.save())
    assert (shared.inserted, shared.sampled, len(shared)) == (embedded.inserted, 0, len(embedded))
    again = EmbeddedReplay(made, SPEC, EXTRAS, num_envs=2, seed=5)
    again.restore(shared.save())
    reader = ServedReader(made, SPEC, EXTRAS, shared)
    for _ in range(5):
        expected = embedded.sample()
        for found in (reader.sample(), again.sample()):
            jax.tree.map(np.testing.assert_array_equal, found, expected)
    # What others write does not take the place of rows that are still needed.
    writer = ServedWriter(made, SPEC, EXTRAS, shared, num_envs=2)
    play_vector(writer.adder(), *([episode(2000 + 500 * i, 20)] for i in (0, 1)))
    writer.flush()
    for _ in range(20):
        seen = reader.sample().data.observation[..., 0]
        assert ((seen < 1000) | (seen >= 2000)).all()
    with pytest.raises(ValueError, match="items of 2 writers; this one can hold those of one"):
        again.restore(shared.save())
    for proxy in (reader, writer):
        proxy.close()


class Rounds:
    """Plays episodes of one action in two streams, which takes until it is told to go on."""

    def __init__(self, made, server, goes_on, is_over):
        self.begun, self.waits = 0, 0
        self._goes_on, self._is_over = goes_on, is_over
        self.writer = ServedWriter(*made, server, num_envs=2, while_waiting=self._look_around)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _look_around(self):
        self.waits += 1
        if self._is_over.is_set():
            raise InterruptedError

    def _run(self):
        adder, seen = self.writer.adder(), np.zeros((2, 2), np.float32)
        zero, one = np.zeros(2, np.float32), np.ones(2, np.float32)
        first, last = (
            dm_env.TimeStep(np.full(2, kind, np.int32), zero, discount, seen)
            for kind, discount in ((0, one), (2, zero))
        )
        adder.add_first(first)
        with contextlib.suppress(InterruptedError):
            for timestep in itertools.cycle((last, first)):
                adder.begin()
                if timestep is last:
                    self.begun += 2
                    self._goes_on.wait()
                adder.add(*act(seen)[:1], timestep, act(seen)[1])


def test_actors_wait_before_they_run_further_ahead_than_is_allowed(monkeypatch):
    """Of six with two items each four may begin; the others do as items are drawn."""
    made = [spec(Rollouts(2), batch_size=4, max_ahead=8), SPEC, EXTRAS]
    server = SharedReplay(*made, num_envs=2, num_writers=6)
    goes_on, is_over = threading.Event(), threading.Event()
    actors = [Rounds(made, server, goes_on, is_over) for _ in range(6)]

    def begun():
        return sum(actor.begun for actor in actors)

    wait_for(lambda: begun() == 8)
    held = [actor for actor in actors if not actor.begun]
    wait_for(lambda: all(actor.waits > 1 for actor in held))
    assert (begun(), len(held)) == (8, 2)
    # Of actors that are not heard of nobody waits for what they have begun.
    monkeypatch.setattr(shared_replay, "_LOST_SECONDS", -1.0)
    wait_for(lambda: begun() == 12)
    monkeypatch.setattr(shared_replay, "_LOST_SECONDS", 60.0)
    goes_on.set()
    for drawn in range(4, 84, 4):
        assert server.draw(4, 9.0, drawn=drawn - 4) is not None
        server.published(drawn)
        assert begun() - drawn <= 12
    wait_for(lambda: len(server) >= 4)
    assert begun() - 80 <= 8
    # What is drawn makes no room before parameters come that have learned from it.
    for drawn in (84, 88):
        assert server.draw(4, 9.0, drawn=drawn - 4) is not None
    wait_for(lambda: len(server) == 0)
    assert begun() == 88
    is_over.set()
    for actor in actors:
        actor.thread.join()
        actor.writer.close()


def test_what_an_actor_may_begin_and_does_not_is_for_others(monkeypatch):
    """As of one whose budget is spent, which lives on; it asks again before it goes on."""
    monkeypatch.setattr(shared_replay, "_LOST_SECONDS", 1000.0)
    made = [spec(Rollouts(2), batch_size=2, max_ahead=2), SPEC, EXTRAS]
    server = SharedReplay(*made, num_envs=2, num_writers=2)
    writers = [ServedWriter(*made, server, num_envs=2) for _ in range(2)]
    seen, zero, one = np.zeros((2, 2), np.float32), np.zeros(2, np.float32), np.ones(2, np.float32)
    first, last = (
        dm_env.TimeStep(np.full(2, kind, np.int32), zero, discount, seen)
        for kind, discount in ((0, one), (2, zero))
    )

    def beginning(adder):
        thread = threading.Thread(target=adder.begin, daemon=True)
        thread.start()
        return thread

    idle, other = (writer.adder() for writer in writers)
    idle.add_first(first)
    wait_for(idle._may_go_on)
    other.add_first(first)
    beginning(other).join(60)
    assert other._is_acting
    again = beginning(idle)
    again.join(1.0)  # Longer than an actor counts as idle: this one acts, and keeps its place.
    assert again.is_alive()
    for timestep in (last, first):
        other.add(*act(seen)[:1], timestep, act(seen)[1])
    assert server.draw(2, 9.0) is not None
    server.published(2)
    again.join(60)
    assert idle._is_acting
    for writer in writers:
        writer.close()
