"""Where the newest variables are, on the learner's node and elsewhere."""

import pathlib

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'troupe[ray]'")

from troupe.agents.variables.publisher import Publisher
from troupe.agents.variables.server import VariableServer
from troupe.launch.distributed.engines.ray import object_board

from ....waiting import wait_for


class Asked(VariableServer):
    """Counts who calls."""

    def __init__(self):
        super().__init__()
        self.gets = 0

    def get(self, newer_than, inline=False):
        self.gets += 1
        return super().get(newer_than, inline)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A learner's workspace; Ray's store hands on what is put into it."""
    monkeypatch.setattr(object_board.ray, "put", lambda value: value)
    monkeypatch.setattr(object_board.ray, "get", lambda reference, timeout: reference)
    monkeypatch.setattr(object_board, "_LOOK_SECONDS", 0.0)
    (tmp_path / "variables").mkdir()
    return tmp_path


def publisher_in(folder, server):
    page = object_board.Page(folder / "variables")
    return Publisher(object_board._Shelf(page), object_board._Announcer(server, page), period=0.0)


def offer(publisher, value):
    publisher.offer({"policy": np.full(2, value, np.float32)})
    assert publisher.flush(10)


def test_readers_of_the_learners_node_make_no_call(folder):
    server = Asked()
    here = [object_board._fetching([pathlib.Path("/nowhere"), folder]) for _ in range(2)]
    publisher = publisher_in(folder, server)
    assert all(fetch(server, -1) is None for fetch in here)
    for value in range(3):
        offer(publisher, value)
        for fetch in here:
            version, variables = fetch(server, value - 1)
            assert (version, variables["policy"].tolist()) == (value, [value] * 2)
        assert not publisher.wanted
        assert here[0](server, value) is None  # Whoever asks wants something newer.
        wait_for(lambda: publisher.wanted)
    assert server.gets == 0
    assert server.look() == (2, False)
    publisher.close()


def test_a_version_becomes_an_object_when_it_is_asked_for_from_afar(folder):
    server = Asked()
    afar = object_board._fetching([pathlib.Path("/nowhere")])
    publisher = publisher_in(folder, server)
    offer(publisher, 7)
    assert server.get(-1)[1] == []
    assert afar(server, -1) is None
    wait_for(lambda: afar(server, -1) is not None)  # The same, though no newer one was offered.
    version, variables = afar(server, -1)
    assert (version, variables["policy"].tolist()) == (0, [7, 7])
    offer(publisher, 8)
    assert afar(server, 0)[1]["policy"].tolist() == [8, 8]  # At once, from now on.
    publisher.close()


def test_a_new_server_is_told_and_a_new_learner_numbers_on(folder):
    publisher = publisher_in(folder, VariableServer())
    offer(publisher, 1)
    publisher.close()
    server = VariableServer()
    here, afar = object_board._fetching([folder]), object_board._fetching([])
    again = publisher_in(folder, server)
    wait_for(lambda: server.look()[0] == 0)
    assert here(server, -1)[1]["policy"].tolist() == [1, 1]
    wait_for(lambda: afar(server, -1) is not None)
    offer(again, 2)
    assert here(server, 0)[0] == afar(server, 0)[0] == 1
    again.close()
