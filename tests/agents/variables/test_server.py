"""The variable server: versions as files, one gather each, and no answer without news."""

import collections
import pathlib
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.variables.client import VariableClient
from troupe.agents.variables.publisher import Publisher
from troupe.agents.variables.reader import VariableReader
from troupe.agents.variables.server import VariableServer
from troupe.agents.variables.version_board import FileShelf, read_version, write_version

from ...waiting import wait_for

Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize("inline", [False, True])
def test_a_version_comes_back_as_it_was(tmp_path, inline):
    variables = {
        "policy": {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": jnp.ones((), jnp.int32)},
        "state": [Pair(jnp.full((3,), 2, jnp.bfloat16), np.zeros((0, 4), bool)), ()],
    }
    path = write_version(tmp_path, 7, variables)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    found = read_version(path.read_bytes() if inline else path)
    assert jax.tree.structure(found) == jax.tree.structure(variables)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(variables), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        np.testing.assert_array_equal(ours, np.asarray(theirs))
    assert not found["policy"]["w"].flags.writeable


def test_what_was_read_outlives_its_file(tmp_path):
    path = write_version(tmp_path, 0, {"policy": np.arange(1000)})
    found = read_version(path)["policy"]
    path.unlink()
    np.testing.assert_array_equal(found, np.arange(1000))


def test_a_server_gives_only_what_is_newer(tmp_path):
    server = VariableServer()
    assert server.get(-1) is None
    assert server.look() == (-1, True)
    path = write_version(tmp_path, 3, {"policy": np.ones(2)})
    server.announce(3, str(path))
    assert server.look() == (3, False)
    assert server.get(2) == (3, str(path), None)
    assert server.get(3) is None
    server.announce(1, "older")
    assert server.look() == (3, True)
    (content,) = server.get(-1, True)[2]
    assert read_version(content)["policy"].tolist() == [1.0, 1.0]


def test_a_version_of_parts_is_the_newest_once_all_are_there():
    server = VariableServer()
    assert not server.announce_part(5, 1, 2, ["b"])
    assert (server.get(-1), server.look()) == (None, (-1, True))
    assert not server.announce_part(6, 1, 2, ["d"])
    assert not server.announce_part(6, 1, 2, ["d"])  # As its publisher does until it is whole.
    assert server.announce_part(5, 0, 2, "a")
    assert server.get(4) == (5, ["a", "b"], None)
    assert server.announce_part(6, 0, 2, ["c"])
    assert server.get(5) == (6, ["c", "d"], None)
    assert server.announce_part(5, 0, 2, ["a"])  # It is known, and a newer one too.
    assert server.get(-1)[0] == 6
    # A rank was gone before it laid down its part of these.
    for version in range(7, 100):
        assert not server.announce_part(version, 0, 2, ["a"])
    assert len(server._parts) < 10
    assert not server.announce_part(100, 1, 2, ["f"])
    assert server.announce_part(100, 0, 2, ["e"])
    assert server.get(6) == (100, ["e", "f"], None)


def test_a_number_that_was_reserved_is_not_given_again(tmp_path):
    publisher = Publisher(FileShelf(tmp_path), VariableServer(), period=0.0)
    assert [publisher.reserve(), publisher.reserve()] == [0, 1]
    publisher.offer({"policy": np.ones(1)}, 1)
    assert publisher.flush(10)
    assert (publisher.version, publisher.reserve()) == (1, 2)
    publisher.close()  # Before it is put, as if it were killed.
    again = Publisher(FileShelf(tmp_path), VariableServer(), period=0.0)
    assert again.reserve() == 3
    again.close()


def test_a_version_is_gathered_once_for_all_readers(tmp_path):
    server = VariableServer()
    publisher = Publisher(FileShelf(tmp_path), server, period=0.0)
    readers = [VariableReader(server, period=0.005) for _ in range(8)]
    publisher.offer({"policy": jnp.arange(3.0)})
    assert publisher.flush(10)
    wait_for(lambda: all(reader.version == 0 for reader in readers))
    assert publisher.gathers == 1
    for reader in readers:
        np.testing.assert_array_equal(reader.get_variables()[0], [0, 1, 2])
        reader.close()
    publisher.close()


def test_what_takes_little_does_not_wait_for_the_period(tmp_path):
    """An hour for both: they are the most that is waited, not the least."""
    server = VariableServer()
    publisher = Publisher(FileShelf(tmp_path), server, period=3600.0)
    reader = VariableReader(server, period=3600.0, first_period=0.005)
    for value in range(5):
        wait_for(lambda: publisher.wanted)
        publisher.offer({"policy": np.full(2, value)})
        wait_for(lambda value=value: reader.version == value)
        assert reader.get_variables()[0].tolist() == [value, value]
    reader.close()
    publisher.close()


def test_offers_that_nobody_could_take_are_passed_over(tmp_path):
    server = VariableServer()
    publisher = Publisher(FileShelf(tmp_path), server, period=0.02)
    for value in range(200):
        publisher.offer({"policy": np.full(2, value)})
    assert publisher.flush(10)
    assert publisher.gathers < 100
    (content,) = server.get(-1, True)[2]
    assert read_version(content)["policy"].tolist() == [199, 199]
    assert len(list(tmp_path.iterdir())) <= 2
    publisher.close()


class Forgetful:
    """A server that cannot be reached at first, and then has forgotten everything."""

    def __init__(self):
        self.inner = None
        self.announced = threading.Event()

    def look(self):
        if self.inner is None:
            raise OSError("down")
        return self.inner.look()

    def announce(self, version, path):
        known = self.inner.announce(version, path)
        self.announced.set()
        return known


def test_a_new_server_is_told_the_newest_version(tmp_path):
    server = Forgetful()
    publisher = Publisher(FileShelf(tmp_path), server, period=0.0)
    publisher.offer({"policy": np.ones(1)})
    wait_for(lambda: publisher.version == 0)
    assert not publisher.flush(0.1)
    server.inner = VariableServer()
    assert server.announced.wait(10)
    server.inner, server.announced = VariableServer(), threading.Event()
    assert server.announced.wait(10)
    assert server.look()[0] == 0
    assert publisher.gathers == 1
    publisher.close()


def test_a_new_learner_numbers_on(tmp_path):
    server = VariableServer()
    for version in range(2):
        publisher = Publisher(FileShelf(tmp_path), server, period=0.0)
        publisher.offer({"policy": np.full(1, version)})
        assert publisher.flush(10)
        assert server.look()[0] == version
        publisher.close()


def test_a_reader_waits_for_the_first_version_and_names_what_there_is(tmp_path):
    server = VariableServer()
    waited = []

    def give_up():
        waited.append(True)
        if len(waited) == 3:
            raise InterruptedError

    reader = VariableReader(server, while_waiting=give_up)
    with pytest.raises(InterruptedError):
        reader.get_variables()
    server.announce(0, str(write_version(tmp_path, 0, {"policy": np.ones(1)})))
    wait_for(lambda: reader.version == 0)
    with pytest.raises(KeyError, match=r"\['critic'\]; there are \['policy'\]"):
        reader.get_variables(["critic"])
    reader.close()


@pytest.mark.parametrize("held", [False, True])
def test_whatever_ends_the_thread_of_a_reader_is_raised_to_its_user(tmp_path, held):
    """It went on giving signs of life, for ever with the variables that it had."""

    class Failing(VariableServer):
        def get(self, newer_than, inline=False):
            if newer_than >= 0 or not held:
                raise ArithmeticError("the server has a mistake in it")
            return super().get(newer_than, inline)

    server = Failing()
    server.announce(0, str(write_version(tmp_path, 0, {"policy": np.ones(1)})))
    reader = VariableReader(server, period=0.005)
    if held:
        assert reader.get_variables()[0].tolist() == [1.0]
        client = VariableClient(reader)
        with pytest.raises(RuntimeError, match="the server has a mistake in it"):
            wait_for(lambda: client.update())
    else:
        with pytest.raises(RuntimeError, match="the server has a mistake in it"):
            reader.get_variables()
    with pytest.raises(RuntimeError, match="newer variables cannot be had"):
        _ = reader.version
    reader.close()


def test_only_versions_that_somebody_asks_for_are_wanted(tmp_path):
    server = VariableServer()
    publisher = Publisher(FileShelf(tmp_path), server, period=0.005)
    learned = -1

    def learn():
        """Takes a step; what comes of it is gathered only where it is wanted."""
        nonlocal learned
        learned += 1
        if publisher.wanted:
            publisher.offer({"policy": np.full(1, learned)})

    learn()
    assert publisher.flush(10)
    assert publisher.gathers == 1
    # Nobody asks: however long it learns, nothing is gathered.
    looks = Looks(server)
    publisher._server = looks
    while looks.count < 20:
        learn()
        time.sleep(0.001)
    assert not publisher.wanted
    assert publisher.gathers == 1
    # Each question is answered by what was learned after it, once.
    for number in range(2, 5):
        asked_at = learned
        held = publisher.version - 1
        server.get(held)
        wait_for(lambda held=held: (learn(), publisher.version > held + 1)[1])
        assert publisher.flush(10)
        path = server.get(held)[1]
        value = read_version(pathlib.Path(path))["policy"].item()
        assert value >= asked_at
        assert publisher.gathers >= number
        publisher._server = server
    publisher.close()


class Looks:
    """A server, and how often it was looked at."""

    def __init__(self, server):
        self._server, self.count = server, 0

    def look(self):
        self.count += 1
        return self._server.look()

    def announce(self, *arguments):
        return self._server.announce(*arguments)


def test_who_waits_for_a_version_is_told_when_it_can_be_read(tmp_path):
    server, told = VariableServer(), []
    publisher = Publisher(FileShelf(tmp_path), server, period=0.005)

    def then():
        told.append(server.look()[0])
        return len(told) == 3  # Not heard before.

    publisher.offer({"policy": np.ones(1)}, then=then)
    wait_for(lambda: len(told) == 3)
    assert publisher.wanted
    publisher.offer({"policy": np.ones(1)})
    assert publisher.flush(10)
    assert not publisher.wanted
    assert (told, server.look()[0]) == ([0, 0, 0], 1)
    publisher.close()
