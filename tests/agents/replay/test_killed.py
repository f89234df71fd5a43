"""A replay that is killed between a checkpoint and its answer to the writer of a chunk in it."""

import signal
import subprocess
import sys
import textwrap
import threading
import time
from multiprocessing import connection

import pytest

from troupe.agents.replay import ReplaySpec, Rollouts, Transitions
from troupe.agents.replay.served import ServedWriter
from troupe.launch.distributed import addresses

from .episodes import EXTRAS, SPEC, Episode, play_vector

SIZES = {"Rollouts": 8, "Transitions": 1000}
"""Items that are held at most."""

SERVER = """
    import pathlib
    import signal
    import sys
    from multiprocessing import connection

    import numpy as np
    from dm_env import specs

    from troupe.agents.replay import ReplaySpec, Rollouts, Transitions
    from troupe.agents.replay.served import SharedReplay
    from troupe.environments.specs import EnvironmentSpec
    from troupe.launch.files import npz

    port, kill_at, drawn = (int(sys.argv[i]) for i in (1, 4, 5))
    state, item = pathlib.Path(sys.argv[2]), eval(sys.argv[3])
    number, pair = specs.Array((), np.float32), specs.Array((2,), np.float32)
    environment = EnvironmentSpec(pair, specs.Array((), np.int32), number, number)
    spec = ReplaySpec(item, 2, max_size=8 if isinstance(item, Rollouts) else 1000)
    replay = SharedReplay(spec, environment, {"log_prob": number}, num_envs=2, num_writers=1)
    if state.exists():
        with open(state, "rb") as file:
            replay.restore(npz.read(file))
    with connection.Listener(("127.0.0.1", port), authkey=b"replay") as listener:
        print("listens", flush=True)
        while True:
            with listener.accept() as one:
                name, arguments = one.recv()
                answer = getattr(replay, name)(*arguments)
                if name == "write" and replay.inserted >= kill_at:
                    for _ in range(drawn):
                        assert replay.draw(2, 0.0) is not None
                    with open(state, "wb") as file:
                        npz.write(file, replay.save())
                    signal.raise_signal(signal.SIGKILL)
                one.send(answer)
"""
"""Answers calls at a port, from the state in a file where there is one.

Behind a chunk with the item of a number it draws some batches, writes its state, and is killed
before it has answered.
"""


class Far:
    """The replay at a port, whoever answers there."""

    def __init__(self, port):
        self._port = port

    def __getattr__(self, name):
        def call(*arguments):
            try:
                with connection.Client(("127.0.0.1", self._port), authkey=b"replay") as server:
                    server.send((name, arguments))
                    return server.recv()
            except EOFError as error:
                raise ConnectionError from error

        return call


@pytest.fixture
def start(tmp_path):
    """Starts a server, where the one before was, and returns its process."""
    port, processes = addresses.free_ports(1)[0], []

    def begin(item, kill_at, drawn=0):
        command = [sys.executable, "-c", textwrap.dedent(SERVER)]
        arguments = map(str, (port, tmp_path / "replay.npz", item, kill_at, drawn))
        process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout.readline() == "listens\n"
        return process, Far(port)

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def writing(item, server, length):
    """A thread that writes an episode in either stream, and what it writes with."""
    spec = ReplaySpec(item, 2, max_size=SIZES[type(item).__name__])
    writer = ServedWriter(spec, SPEC, EXTRAS, server, num_envs=2)
    episodes = [[Episode(1000 * i, (0.0,) * length)] for i in (0, 1)]
    thread = threading.Thread(target=play_vector, args=(writer.adder(), *episodes), daemon=True)
    thread.start()
    return writer, thread


def test_a_chunk_that_comes_again_is_not_taken_again(start):
    first, server = start("Transitions(1, 1.0)", 30)
    writer, thread = writing(Transitions(1, 1.0), server, 200)
    assert first.wait(60) == -signal.SIGKILL
    start("Transitions(1, 1.0)", 10**6)
    thread.join(60)
    writer.flush()
    assert server.numbers() == (400, 400, 0)  # None twice, and none is lost.
    writer.close()


@pytest.mark.parametrize("drawn", [0, 1])
def test_each_rollout_is_drawn_once_though_the_server_was_killed(start, drawn):
    """In its checkpoint may be no item any more, and the beginning of the next."""
    first, server = start("Rollouts(5)", 2, drawn)
    writer, thread = writing(Rollouts(5), server, 20)
    assert first.wait(60) == -signal.SIGKILL
    start("Rollouts(5)", 10**6)
    starts, deadline = [], time.monotonic() + 60
    while len(starts) < 8 - 2 * drawn:
        assert time.monotonic() < deadline
        if (sample := server.draw(2, 0.5)) is not None:
            starts += sample.data.observation[..., 0, 0].reshape(-1).tolist()
    thread.join(60)
    writer.flush()
    # What was drawn before went to a learner.
    assert sorted(starts) == sorted(1000 * i + t for i in (0, 1) for t in range(5 * drawn, 20, 5))
    assert server.numbers() == (0, 8, 8)
    writer.close()
