"""docs/external.md: its scripts serve what its text says."""

import functools
import re
import sys
import threading
import types

import numpy as np
import pytest

from troupe import environments
from troupe.environments.external import client


@pytest.fixture
def served(monkeypatch, pages):
    """Runs a script of the page, at a port that is free; returns the id and its server."""
    found, is_there = [], threading.Event()

    def started(server):
        found.append(server)
        is_there.set()

    class Recorded(client.SimulatorServer):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            started(self)

    module = types.SimpleNamespace(**{name: getattr(client, name) for name in client.__all__})
    module.serve = functools.partial(client.serve, started=started)
    module.SimulatorServer = Recorded
    monkeypatch.setitem(sys.modules, "client", module)
    threads = []

    def run(index):
        _, scripts = pages("external.md")
        code = scripts[index].replace("127.0.0.1:7000", "127.0.0.1:0")

        def play():
            try:
                exec(compile(code, "external.md", "exec"), {})
            except OSError:
                assert index  # `wait` says that the server is closed; `serve` returns.

        threads.append(threading.Thread(target=play))
        threads[0].start()
        assert is_there.wait(30)
        return f"external:{found[0].address}"

    yield run
    found[0].close()
    threads[0].join(30)
    assert not threads[0].is_alive()


def test_an_environment_is_served(served):
    with environments.make(served(0), seed=0, num_envs=2) as vector:
        assert vector.reset().observation.shape == (2, 4)


def test_a_loop_of_its_own_asks_for_actions(served):
    with environments.make(served(1), seed=0, num_envs=1) as vector:
        timestep = vector.reset()
        rewards = []
        while not timestep.last().all():
            timestep = vector.step(np.ones(1, np.int32))
            rewards.extend(timestep.reward.tolist())
        assert rewards == pytest.approx([0.1] * 6 + [-1.0])
        assert vector.step(np.ones(1, np.int32)).observation.tolist() == [[0.0, 1.0]]


def test_its_figures_are_those_that_there_are(pages):
    page = (pages.__globals__["DOCS"] / "external.md").read_text()
    from troupe.environments.external import ids
    from troupe.environments.external.client import messages, spaces

    for name, seconds in ids._SECONDS.items():
        assert f"`--env.{name}` ({seconds:g} s)" in page
    for name in (messages.TOKEN, messages.TOKEN_PATH):
        assert f"`{name}`" in page
    assert f'"protocol": {messages.PROTOCOL},' in page
    kinds = re.findall(r'\{"type": "(\w+)"', page)
    made = [client.box(()), client.discrete(2), client.multi_discrete([2])]
    nests = [client.nest({}), client.nest([])]
    assert kinds == [space["type"] for space in (*made, *nests)]
    assert {"bool", "float32", "float64"} < set(spaces.CODES)
