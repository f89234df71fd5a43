"""Rollouts are begun no further ahead than parameters allow that actors can have."""

import threading

import dm_env
import numpy as np
import pytest

from troupe.agents.replay import ReplaySpec, Rollouts
from troupe.agents.replay.embedded.adder import EmbeddedAdder
from troupe.agents.replay.embedded.embedded_replay import make_windows, row_fields
from troupe.agents.replay.embedded.rows import Rows
from troupe.agents.replay.served import ServedReader, SharedReplay, chunks

from ...waiting import wait_for
from .episodes import EXTRAS, SPEC, act

ZERO, ONE = np.zeros(2, np.float32), np.ones(2, np.float32)


def timestep(kind, number=0.0):
    seen = np.full((2, 2), number, np.float32)
    return dm_env.TimeStep(np.full(2, kind, np.int32), ZERO, ONE if kind == 0 else ZERO, seen)


class Writer:
    """Two streams of answers, whose rows are sent when it is said, by whoever says it."""

    def __init__(self, name, item, server):
        self.name, self.server = name, server
        windows = make_windows(item, 2)
        self.items = chunks.Items(windows.columns)
        windows.insert_into(self.items)
        self.rows = Rows(row_fields(windows.stored, SPEC, EXTRAS), 4 * windows.span + 256, 2)
        oldest = lambda: max(0, self.sent - 1)  # noqa: E731
        self.adder = EmbeddedAdder(self.rows, windows, threading.RLock(), lambda: None, oldest)
        self.sent = self.number = 0
        self.limit = 1
        self.chunk = self.version = None
        self.adder.add_first(timestep(0))

    def send(self):
        if self.chunk is None:
            self.chunk = chunks.take(self.rows, self.sent, self.items.take())
            self.sent, self.number = self.rows.written, self.number + 1
        room = self.server.write(self.name, self.number, self.chunk, 0.0)
        if room is not None:  # Else there is none for the items in it.
            self.limit, self.chunk = max(self.limit, self.sent + room), None

    def go_on(self, newest):
        """Begins an answer, ends it, or asks whether it may begin one."""
        if self.chunk is not None or self.rows.written >= self.limit:
            self.send()
        elif self.version is None:
            self.version = newest
        elif self.rows.written % 2:
            self.add(timestep(2, self.version))
        else:
            self.add(timestep(0))
            self.version = None

    def add(self, following):
        seen = np.zeros((2, 2), np.float32)
        self.adder.add(*act(seen)[:1], following, act(seen)[1])
        self.send()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("staleness", "batch_size", "k", "writers"),
    [(0, 2, 1, 3), (0, 4, 1, 3), (1, 4, 1, 2), (1, 2, 2, 4), (5, 4, 2, 3)],
)
def test_none_is_older_than_allowed_when_it_is_learned_from(
    staleness, batch_size, k, writers, seed
):
    """However quick actors, the learner and its parameters are, and none waits for ever."""
    random = np.random.default_rng(seed)
    made = ReplaySpec(
        Rollouts(2), batch_size, 2 * batch_size * k, max_ahead=(staleness + 1) * batch_size
    )
    server = SharedReplay(made, SPEC, EXTRAS, num_envs=2, num_writers=writers, steps_per_sample=k)
    actors = [Writer(str(i), made.item, server) for i in range(writers)]
    steps = published = drawn = learned = 0
    read = offered = None
    ages = []
    for spread in (2.0, 0.0) * 3:
        # One is as quick as a hundred of another, each time others; then all alike.
        weights, before = 10.0 ** random.uniform(0, spread, writers + 3), steps
        for chosen in random.choice(writers + 3, 1000, p=weights / weights.sum()):
            if chosen < writers:
                actors[chosen].go_on(published)
            elif chosen == writers and read is None:
                read = server.draw(batch_size, 0.0, 1, drawn)
                drawn = drawn if read is None else int(read.info.keys.max()) + 1
            elif chosen == writers + 1 and read is not None:
                versions = np.asarray(read.data.observation)[:, :, 1, 0]
                ages += (steps + np.arange(k)[:, None] - versions).ravel().tolist()
                steps, learned, read = steps + k, drawn, None
                offered = steps, learned
            elif chosen == writers + 2 and offered is not None:
                server.published(offered[1])
                published, offered = offered[0], None
        assert spread or steps > before + 20
    assert (min(ages) >= 0, max(ages)) == (True, staleness)


def test_a_learner_that_begins_anew_holds_nobody_up():
    """Rollouts that the one before it drew and never published are lost."""
    made = ReplaySpec(Rollouts(2), 2, 4, max_ahead=2)
    server = SharedReplay(made, SPEC, EXTRAS, num_envs=2)
    actor = Writer("a", made.item, server)

    def answer(count):
        for _ in range(10):
            if server.numbers()[1] == count:
                return True
            actor.go_on(0)
        return False

    assert answer(2)
    assert server.draw(2, 0.0) is not None
    assert not answer(4)
    assert server.draw(2, 0.0, 1, 2) is None
    assert not answer(4)
    assert server.draw(2, 0.0) is None  # By one that has nothing.
    assert answer(4)
    again = SharedReplay(made, SPEC, EXTRAS, num_envs=2)
    again.restore(server.save())
    assert again.draw(2, 0.0, 1, 2) is not None
    again.published(1000)  # A key of the replay before it.
    actor.server = again
    assert answer(4)
    actor.go_on(0)
    assert actor.limit > actor.rows.written


def test_a_learner_tells_what_it_has_learned_from():
    made = ReplaySpec(Rollouts(2), 2, 4, max_ahead=4)
    server = SharedReplay(made, SPEC, EXTRAS, num_envs=2)
    heard = []

    class Deaf:
        def __getattr__(self, name):
            return getattr(server, name)

        def published(self, before):
            heard.append(before)
            if len(heard) == 1:
                raise OSError("down")

    reader = ServedReader(made, SPEC, EXTRAS, Deaf())
    at_first = reader.on_published()
    actor = Writer("a", made.item, server)
    wait_for(lambda: actor.go_on(0) or reader.can_sample())
    reader.sample()
    after = reader.on_published()
    assert at_first()
    assert heard == []
    assert [after(), after(), heard] == [False, True, [2, 2]]
    reader.close()


def test_nobody_is_told_where_nobody_waits():
    made = ReplaySpec(Rollouts(2), 2, 4)
    reader = ServedReader(made, SPEC, EXTRAS, SharedReplay(made, SPEC, EXTRAS, num_envs=2))
    assert reader.on_published() is None
    reader.close()
