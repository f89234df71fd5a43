"""Strangers at the socket where the ranks of a learner meet: they are refused, and all goes on."""

import contextlib
import pathlib
import socket
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from troupe.launch.distributed import addresses, listener
from troupe.launch.distributed.gang import joining, protocol, rendezvous

TOKEN = "5a" * 32
SIZE = 3


def greeting(text, length=None):
    content = text if isinstance(text, bytes) else text.encode()
    return listener.LENGTH.pack(len(content) if length is None else length) + content


STRANGERS = {
    "nothing": b"",
    "half a length": b"\x01\x00",
    "a huge length": greeting(b"", 2**32 - 1),
    "a huge length, and on": greeting(b"x" * 5000, 2**31),
    "no content": greeting(b""),
    "another's token": greeting(f"1 {'00' * 32}"),
    "no token": greeting("1 "),
    "half of it": greeting(f"1 {TOKEN}")[:40],
    "no rank": greeting(f"zero {TOKEN}"),
    "rank 0": greeting(f"0 {TOKEN}"),
    "too high a rank": greeting(f"3 {TOKEN}"),
    "a rank below none": greeting(f"-1 {TOKEN}"),
    "no text": greeting(b"\xff\xfe " + TOKEN.encode()),
    "a token that is no text": greeting(b"1 " + b"\xe9" * 64),
    "of the web": b"GET / HTTP/1.1\r\nHost: h0\r\n\r\n",
}


@contextlib.contextmanager
def led():
    """A rank 0 that waits for two others: itself, its address, and its thread's errors."""
    with pytest.MonkeyPatch.context() as patched:
        port, coordinator = addresses.free_ports(2)
        patched.setenv(rendezvous.ADDRESS, f"{addresses.LOOPBACK}:{coordinator}")
        patched.setenv(rendezvous.WORDS, f"{addresses.LOOPBACK}:{port}")
        patched.setenv(rendezvous.TOKEN, TOKEN)
        leader, errors, listens = protocol.Leader(SIZE), [], threading.Event()
        patched.setattr(joining, "join", lambda *_: listens.set())  # No devices are wanted here.

        def join():
            try:
                leader.join()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=join, daemon=True)
        thread.start()
        assert listens.wait(30)
        yield leader, (addresses.LOOPBACK, port), errors
        thread.join(30)
        assert not thread.is_alive()
        assert not errors


def call(place, content, leaves=False):
    stranger = socket.create_connection(place, timeout=30)
    with contextlib.suppress(OSError):  # Refused already.
        stranger.sendall(content)
    if leaves:
        stranger.close()
    return stranger


def is_refused(stranger):
    try:
        return stranger.recv(1) == b""
    except ConnectionResetError:
        return True


def meet(leader):
    followers = [protocol.Follower(SIZE, rank) for rank in (2, 1)]
    for follower in followers:
        follower.join()
    return followers


def speak(leader, followers):
    """What is said is heard, both ways."""
    leader.say(protocol.STEP)
    for follower in followers:
        assert follower.listen(30) == (protocol.STEP, "")
        follower.announce()
    while not leader.ready():
        leader.wait(30)
    for follower in followers:
        follower._leader.close()
    for other in leader._others.values():
        other.close()


@pytest.mark.parametrize("leaves", [False, True])
def test_no_stranger_keeps_the_ranks_from_meeting(leaves):
    with led() as (leader, place, _):
        strangers = [call(place, content, leaves) for content in STRANGERS.values()]
        followers = meet(leader)
    speak(leader, followers)
    for stranger in strangers:
        if not leaves:
            assert is_refused(stranger)
            stranger.close()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(
                st.sampled_from(list(STRANGERS.values())),
                st.binary(max_size=400),
                st.builds(greeting, st.binary(max_size=300), st.integers(0, 2**32 - 1)),
            ),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_whatever_strangers_say(said):
    with led() as (leader, place, _):
        strangers = [call(place, content, leaves) for content, leaves in said]
        followers = meet(leader)
    speak(leader, followers)
    for stranger in strangers:
        stranger.close()


def test_who_says_nothing_is_refused_in_time(monkeypatch):
    monkeypatch.setattr(listener, "_GREETING_SECONDS", 0.0)
    with led() as (leader, place, _):
        stranger = call(place, b"")
        assert is_refused(stranger)
        monkeypatch.setattr(listener, "_GREETING_SECONDS", 30.0)
        followers = meet(leader)
    speak(leader, followers)
    stranger.close()


def test_a_crowd_of_strangers_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(listener, "_CALLERS", 4)
    with led() as (leader, place, _):
        strangers = [call(place, b"") for _ in range(12)]
        for stranger in strangers[:8]:  # The first of too many.
            assert is_refused(stranger)
        followers = meet(leader)
    speak(leader, followers)
    for stranger in strangers:
        stranger.close()


def test_a_rank_is_let_in_once():
    with led() as (leader, place, _):
        first = call(place, greeting(f"1 {TOKEN}"))
        second = call(place, greeting(f"1 {TOKEN}"))
        assert is_refused(second)
        follower = protocol.Follower(SIZE, 2)
        follower.join()
    leader.say(protocol.STEP)
    assert first.recv(100)
    for one in (first, second, follower._leader, *leader._others.values()):
        one.close()


def test_a_save_is_agreed_on_while_steps_are_said():
    with led() as (leader, _, _):
        followers = meet(leader)
    state, outcome = {"w": np.ones(3)}, []

    def save():
        leader.compare(state)
        finish = leader.saving(pathlib.Path("checkpoint"))
        try:
            finish()
        except OSError as error:
            outcome.append(str(error))

    leader.say(protocol.CUT)
    thread = threading.Thread(target=save, daemon=True)
    thread.start()
    for follower in followers:
        assert follower.listen(30) == (protocol.CUT, "")
        follower.announce()
    while not leader.ready():
        leader.wait(30)
    leader.say(protocol.STEP)
    for follower in followers:
        follower.show(state)
        follower.announce()
        assert follower.listen(30) == (protocol.STEP, "")
    for follower in followers:
        assert follower.listen(30) == (protocol.SAVE, "checkpoint")
        follower.saved("no space" if follower.rank == 2 else "")
    thread.join(30)
    assert outcome == ["rank 2: no space"]
    while not leader.ready():  # What was said meanwhile is not lost.
        leader.wait(30)
    for one in (*(follower._leader for follower in followers), *leader._others.values()):
        one.close()
