"""Calls through sockets: what they answer, whom, and what follows where there is no answer."""

import threading
import types
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'troupe[ray]'")

from troupe.launch.distributed.engines.ray import actor_client, direct, host
from troupe.launch.distributed.roles import rpc

HERE = "127.0.0.1"


@pytest.fixture
def role(monkeypatch):
    """The inference server of incarnation 1, in this process: it doubles, waits, or fails."""
    monkeypatch.setattr(host.ray.util, "get_node_ip_address", lambda: HERE)
    place = host.Place("inference", "run", 1, None, "/nowhere/log", {}, 0, None)
    made, go_on = host.RoleHost(place, {}, []), threading.Event()

    def fail():
        raise ValueError("no such\nsession")

    made.serve(
        types.SimpleNamespace(
            infer=lambda x: (2 * x, None), wait=go_on.wait, fail=fail, lock=threading.Lock
        )
    )
    yield made
    go_on.set()


def actor_of(role, address=None):
    """Stands for Ray's handle of the role: its calls are answered at once, in this process."""
    actor = mock.Mock()
    actor.direct.remote.side_effect = lambda: address or role.direct()
    actor.call.remote.side_effect = role.call
    return actor


@pytest.fixture
def remote(monkeypatch):
    """The proxy of an actor, and the list of what Ray finds under its name, the first one next."""
    found = []
    monkeypatch.setattr(actor_client.ray, "get_actor", lambda *_, **__: found.pop(0))
    monkeypatch.setattr(actor_client.ray, "get", lambda answer, timeout: answer)
    return actor_client.RayRemote("run", 1, "inference", 0.5, direct=True), found


def test_arrays_come_and_go_beside_ray(role, remote):
    one, found = remote
    found.append(actor := actor_of(role))
    for n in (1, 3, 100_000):
        answer, nothing = one.infer(np.arange(n))
        np.testing.assert_array_equal(answer, 2 * np.arange(n))
        assert nothing is None
    assert not actor.call.remote.called
    assert actor.direct.remote.call_count == 1
    answers = []
    thread = threading.Thread(target=lambda: answers.append(one.infer(21)))
    thread.start()
    thread.join()
    assert answers == [(42, None)]
    assert actor.direct.remote.call_count == 2  # Each thread has a connection.


def test_failures_are_told_in_words(role, remote):
    one, found = remote
    found.append(actor_of(role))
    with pytest.raises(rpc.RemoteError, match="the inference at fail: ValueError: no such session"):
        one.fail()
    with pytest.raises(rpc.RemoteError, match="the inference at lock: TypeError: cannot pickle"):
        one.lock()
    assert one.infer(4) == (8, None)


def test_an_answer_that_comes_too_late_is_nobodys(role, remote):
    one, found = remote
    found += [first := actor_of(role), second := actor_of(role)]
    with pytest.raises(rpc.Unreachable, match="no answer from the inference"):
        one.wait(30.0)
    assert one.infer(5) == (10, None)
    assert first.direct.remote.called
    assert second.direct.remote.called


def test_a_server_that_is_gone_is_found_anew(role, remote):
    one, found = remote
    listener = direct.socket.create_server((HERE, 0))
    gone = direct.Address(*listener.getsockname(), "token")
    found += [actor_of(role, gone), actor_of(role)]

    def leave():
        listener.accept()[0].close()
        listener.close()

    thread = threading.Thread(target=leave)
    thread.start()
    with pytest.raises(rpc.Unreachable):
        one.infer(6)
    thread.join()
    assert one.infer(6) == (12, None)


def test_where_nobody_is_let_in_calls_go_through_ray(role, remote):
    one, found = remote
    with direct.socket.create_server((HERE, 0)) as listener:
        nowhere = direct.Address(*listener.getsockname(), "token")
    found.append(actor := actor_of(role, nowhere))
    assert [one.infer(n) for n in (1, 2)] == [(2, None), (4, None)]
    assert actor.call.remote.call_count == 2
    assert actor.direct.remote.call_count == 1  # It is not tried at every call.


def test_only_who_knows_the_token_is_answered(role):
    address = role.direct()
    stranger = direct.DirectConnection(address._replace(token="guessed"), 5.0)
    with pytest.raises(direct.ConnectionLost):
        stranger.call(1, "infer", (1,))
    assert direct.DirectConnection(address, 5.0).call(1, "infer", (1,)) == (host.DONE, (2, None))
    other = direct.DirectConnection(address, 5.0).call(2, "infer", (1,))
    assert other == (host.OTHER, 1)  # Of another incarnation of the run.
    assert role.direct() == address


def test_a_proxy_stays_direct_where_it_is_sent():
    one = actor_client.RayRemote("run", 1, "inference", direct=True)
    for copy in (actor_client.ray.cloudpickle.loads(actor_client.ray.cloudpickle.dumps(one)),
                 one.patient(5.0)):  # fmt: skip
        assert copy._is_direct
