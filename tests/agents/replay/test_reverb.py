"""What only the replay on Reverb promises: its pace, its priorities, and bad days of its server."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import dm_env
import numpy as np
import pytest

from troupe.agents.interfaces import Adder
from troupe.agents.replay import Replay, ReplaySpec, Transitions

from .numbers import NUMBERS

pytestmark = pytest.mark.distributed
reverb = pytest.importorskip("reverb")
portpicker = pytest.importorskip("portpicker")
replay_on_reverb = pytest.importorskip("troupe.agents.replay.reverb")


class Site:
    """A server that can be ended and begun again at its address, with what was made to use it."""

    def __init__(self, spec: ReplaySpec, steps: int = 1) -> None:
        self._spec, self._steps = spec, steps
        self._server = reverb.Server(replay_on_reverb.make_tables(spec, NUMBERS, (), steps))
        self.address = f"127.0.0.1:{self._server.port}"
        self._made: list = []

    def adder(self, **options):
        adder = replay_on_reverb.ReverbAdder(self._spec, NUMBERS, (), self.address, **options)
        self._made.append(adder)
        return adder

    def reader(self):
        reader = replay_on_reverb.ReverbReplay(
            self._spec, NUMBERS, (), self.address, steps_per_sample=self._steps
        )
        self._made.append(reader)
        return reader

    def close(self) -> None:
        for one in self._made:
            one.close()
        self._server.stop()


@pytest.fixture
def make_site():
    sites: list[Site] = []

    def make(steps: int = 1, **changes) -> Site:
        options = {"item": Transitions(1), "batch_size": 8, "max_size": 1000, **changes}
        sites.append(Site(ReplaySpec(**options), steps))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


def steps_of(number: int, episode: int = 10):
    """The time step of one environment, or of vectors of one."""
    kind = number % episode
    return dm_env.TimeStep(
        np.array([0 if kind == 0 else 2 if kind == episode - 1 else 1], np.int32),
        np.zeros(1, np.float32),
        np.ones(1, np.float32),
        np.full((1, 1), number, np.float32),
    )


def write(adder, rows: int, start: int = 0) -> None:
    if start == 0:
        adder.add_first(steps_of(0))
    for number in range(max(1, start), rows + start):
        adder.add(np.zeros(1, np.int32), steps_of(number))


def test_they_are_a_replay_and_an_adder(make_site):
    site = make_site()
    assert isinstance(site.reader(), Replay)
    assert isinstance(site.adder(), Adder)


@pytest.mark.parametrize("actors", [1, 3])
@pytest.mark.parametrize("ratio", [0.25, 4.0, 64.0])
def test_the_ratio_is_kept(make_site, actors, ratio):
    site = make_site(min_size=50, samples_per_insert=ratio)
    wanted, stopped = 50 + 1000, threading.Event()

    class Stopped(Exception):
        pass

    def check() -> None:
        if stopped.is_set():
            raise Stopped

    def act(adder) -> None:
        number = 0
        try:
            while not stopped.is_set():
                write(adder, 50, number)
                number += 50
        except Stopped:
            pass

    threads = [
        threading.Thread(target=act, args=(site.adder(num_envs=1, while_waiting=check),))
        for _ in range(actors)
    ]
    for thread in threads:
        thread.start()
    reader = site.reader()
    try:
        while reader.inserted < wanted:
            if reader.wait(0.1):
                reader.sample()
        assert abs(reader.observed_samples_per_insert / ratio - 1.0) < 0.05
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def test_fused_batches(make_site):
    site = make_site(steps=3)
    adder = site.adder(num_envs=1)
    write(adder, 50)
    adder.flush()
    reader = site.reader()
    sample = reader.sample(3)
    assert sample.data.observation.shape == (3, 8, 1)
    assert sample.info.keys.shape == (3, 8)
    with pytest.raises(ValueError, match="draws 3"):
        reader.sample(2)
    with pytest.raises(ValueError, match="draws 3"):
        reader.can_sample()


def test_draws_follow_the_priorities_written_back(make_site):
    site = make_site(priority_exponent=1.0, max_size=4, batch_size=4)
    adder = site.adder(num_envs=1)
    write(adder, 5)
    adder.flush()
    reader = site.reader()
    keys = {}
    while len(keys) < 4:
        sample = reader.sample()
        keys.update(zip(sample.data.observation[:, 0].tolist(), sample.info.keys, strict=True))
    given = np.array([keys[float(i)] for i in range(4)])
    gone = np.array([12345], np.uint64)
    reader.update_priorities(np.append(given, gone), np.array([0.0, 1.0, 2.0, 5.0, 9.0]))
    deadline = time.monotonic() + 10
    drawn = np.zeros(0)
    while time.monotonic() < deadline:  # What was read before the update comes first.
        sample = reader.sample()
        if np.isclose(sample.info.probabilities, 5.0 / 8.0).any():
            drawn = np.concatenate([reader.sample().data.observation[:, 0] for _ in range(50)])
            break
    share = np.bincount(drawn.astype(int), minlength=4) / len(drawn)
    np.testing.assert_allclose(share, np.array([0, 1, 2, 5]) / 8, atol=0.12)


def test_new_items_have_the_largest_priority(make_site):
    site = make_site(priority_exponent=1.0, max_size=100)
    adder = site.adder(num_envs=1)
    write(adder, 9)
    adder.flush()
    reader = site.reader()
    reader.update_priorities(reader.sample().info.keys[:1], np.array([24.0]))
    client = reverb.Client(site.address)
    deadline = time.monotonic() + 10
    while not client.server_info()["largest_priority"].current_size:
        assert time.monotonic() < deadline
    other = site.adder(num_envs=1)
    write(other, 2)
    other.flush()
    while True:
        assert time.monotonic() < deadline
        sample = reader.sample()
        if (sample.info.size == 9).any():
            break
    # Eight items, one of them with 24, and a ninth with 24.
    chances = [reader.sample().info.probabilities for _ in range(8)][-1]
    assert set(np.round(chances * 55.0)) <= {1.0, 24.0}


def test_readers_that_share_a_replay_share_the_largest_priority(make_site):
    site = make_site(priority_exponent=1.0, max_size=100)
    adder = site.adder(num_envs=1)
    write(adder, 9)
    adder.flush()
    first, second = site.reader(), site.reader()
    keys = first.sample().info.keys[:1]
    client, deadline = reverb.Client(site.address), time.monotonic() + 10

    def puts():
        return client.server_info()["largest_priority"].rate_limiter_info.insert_stats.completed

    first.update_priorities(keys, np.array([5.0]))
    while puts() < 1:
        assert time.monotonic() < deadline
    for priority in (2.0, 6.0):
        second.update_priorities(keys, np.array([priority]))
    while puts() < 2:
        assert time.monotonic() < deadline
    (item,) = client.sample("largest_priority", emit_timesteps=False)
    assert np.asarray(item.data[0]).item() == 6.0  # And 2 was not put in place of 5.


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_a_priority_that_is_none_is_refused(make_site, bad):
    reader = make_site(priority_exponent=1.0).reader()
    with pytest.raises(ValueError, match="priorities lie between"):
        reader.update_priorities(np.array([1]), np.array([bad]))


SERVER = """
import sys, types
import numpy as np
import reverb
from dm_env import specs
from troupe.agents.replay import ReplaySpec, Transitions
from troupe.agents.replay.reverb import make_tables
spec = types.SimpleNamespace(
    observations=specs.Array((1,), np.float32), actions=specs.Array((), np.int32))
server = reverb.Server(make_tables(ReplaySpec(Transitions(1), 8, 1000), spec), int(sys.argv[1]))
print("up", flush=True)
server.wait()
"""


@pytest.mark.long
def test_writers_and_reader_outlive_the_server():
    """In a process of its own: a server of this process would be used without a connection."""

    def begin() -> subprocess.Popen:
        command = [sys.executable, "-c", SERVER, str(port)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        return server

    port = portpicker.pick_unused_port()
    arguments = ReplaySpec(Transitions(1), 8, 1000), NUMBERS, (), f"127.0.0.1:{port}"
    waits: list[float] = []
    adder = replay_on_reverb.ReverbAdder(
        *arguments, num_envs=1, while_waiting=lambda: waits.append(time.monotonic())
    )
    reader = replay_on_reverb.ReverbReplay(*arguments)
    server, stopped = begin(), threading.Event()

    def act() -> None:
        number = 0
        while not stopped.is_set():
            write(adder, 10, number)
            number += 10

    thread = threading.Thread(target=act)
    thread.start()
    try:
        before = reader.sample().data.observation.max()
        server.kill()
        server.communicate()
        dead_since = time.monotonic()
        server = begin()
        while reader.sample().data.observation.max() < before + 5000:
            assert time.monotonic() < dead_since + 60
        asked = [t for t in waits if t > dead_since]
        assert asked
        assert max(np.diff(asked), default=0.0) < 2.0
    finally:
        stopped.set()
        thread.join()
        reader.close()
        adder.close()
        server.kill()
        server.communicate()


def test_the_reader_may_be_closed_while_it_waits(make_site):
    reader = make_site(min_size=100).reader()
    assert not reader.wait(0.1)
    start = time.monotonic()
    reader.close()
    assert time.monotonic() - start < 5.0
    with pytest.raises(RuntimeError, match="closed"):
        reader.sample()


def test_a_tolerance_that_reverb_cannot_keep_is_refused():
    spec = ReplaySpec(Transitions(), 8, 100, samples_per_insert=64.0, tolerance=100.0)
    with pytest.raises(ValueError, match="at least 128"):
        replay_on_reverb.make_tables(spec, NUMBERS)


def test_no_state_is_given_to_a_client(make_site):
    reader = make_site().reader()
    with pytest.raises(ValueError, match="started with that folder"):
        reader.restore({"folder": "x"})
