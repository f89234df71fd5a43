"""Which host is which, and what hosts that meet tell each other; over real sockets of loopback."""

import json
import socket

import pytest

pytest.importorskip("launchpad")

from troupe import launch
from troupe.baselines.command.line import main
from troupe.launch import signals
from troupe.launch.distributed import addresses, hosts, listener
from troupe.launch.distributed.engines.launchpad.hosts import channel, guest, guests
from troupe.launch.distributed.engines.launchpad.launcher import Post
from troupe.launch.distributed.supervision import heartbeat
from troupe.launch.distributed.supervision.role import Settings
from troupe.launch.distributed.supervision.supervisor import RoleError

pytestmark = pytest.mark.distributed

NAMES = ("h0", "h1", "h2")
FACTS = {"versions": {"jax": "0.6.2"}, "asked": {"seed": 0, "config": {"batch_size": 64}}}
ROLES = [("counter", 0), ("learner", 0), ("learner", 1), ("actor", 0), ("actor", 1), ("actor", 2)]


class Rendezvous:
    """A core's side, and the calls of others."""

    def __init__(self, folder):
        self.folder, self.said, self._made = folder, [], []
        self._server = socket.socket()
        self._server.bind((addresses.LOOPBACK, 0))
        self.place = channel.MeetingPlace(*self._server.getsockname(), "5a" * 32)
        self._entrance = listener.Listener(self._server, self.place.token)
        gang = {"learner": Settings(gang="learner")}
        self.posts = [
            Post(f"{label}/{i}", label, None, folder, i, row, gang.get(label, Settings()))
            for row, (label, i) in enumerate(ROLES)
        ]
        self.board = heartbeat.Board(folder / "board", len(self.posts))
        own = hosts.Hosts(NAMES, 0, addresses.LOOPBACK)
        welcome = {"ports": [1, 2]}
        self.guests = guests.Guests(
            own, self._entrance, FACTS, welcome, self.posts, self.board, self.said.append
        )

    def call(self, host, instance="one", facts=FACTS):
        made = channel.call(self.place, host, 10)
        self._made.append(made)
        made.send(hello={"facts": facts, "instance": instance})
        return made

    def heard(self, made):
        """What the core has told a caller; None: it is sent away."""
        while (messages := made.receive()) == []:
            self.guests.poll()
        return messages

    def until(self, condition):
        while not condition():
            self.guests.poll()

    def close(self):
        for made in self._made:
            made.close()
        self.guests.wait(0.0)
        self._entrance.close()
        self._server.close()


@pytest.fixture
def meeting(tmp_path):
    made = Rendezvous(tmp_path)
    yield made
    made.close()


def test_where_roles_are():
    place = {(label, i): hosts.place(label, i, 3) for label, i in ROLES}
    assert place == {
        ("counter", 0): 0,
        ("learner", 0): 0,
        ("learner", 1): 1,
        ("actor", 0): 1,
        ("actor", 1): 2,
        ("actor", 2): 1,
    }
    assert {hosts.place(label, i, 1) for label, i in ROLES} == {0}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("no..where,127.0.0.1", "'no..where', which leads nowhere from here"),
        ("0.0.0.0", "'0.0.0.0', which leads nowhere from here (it is every address)"),
        ("203.0.113.7", "the hosts are 203.0.113.7, and none of them is this machine"),
        ("127.0.0.1,127.0.0.2", "and several of them are this machine"),
        ("127.0.0.1,203.0.113.7", "127.0.0.1 is 127.0.0.1 here, where no other host reaches it"),
        ("localhost,127.0.0.1", "names localhost and 127.0.0.1, which are both 127.0.0.1"),
        ("h0,h1,h0", "--hosts names h0 twice"),
        ("h0,,h1", "the hosts are 'h0,,h1'"),
    ],
)
def test_hosts_that_cannot_be_are_named(tmp_path, capsys, names, said):
    run = ["train", "dqn", "--env", "CartPole-v1", "--launch", "processes", "--hosts", names]
    assert main([*run, "--out", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("train dqn --env CartPole-v1 --hosts h0,h1", "--hosts needs --launch processes"),
        ("train dqn --env CartPole-v1 --launch ray --hosts h0,h1", "--hosts needs --launch proc"),
        ("train dqn --env CartPole-v1 --launch processes --hosts h0,h1", "--hosts needs --out DIR"),
        (
            "train dqn --env CartPole-v1 --launch processes --hosts h0 --listen 10.0.0.1",
            "each listens on its own address; leave out --listen",
        ),
        (
            "sweep dqn --env CartPole-v1 --launch processes --hosts h0 --config.batch_size 4,8",
            "leave out --hosts",
        ),
    ],
)
def test_flags_that_do_not_go_together(capsys, arguments, said):
    assert main(arguments.split()) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line


def test_a_host_is_welcome_goes_and_comes_back(meeting, monkeypatch):
    monkeypatch.setattr(guests, "_TOLD_SECONDS", 0.0)
    first = meeting.call(2)
    (hello,) = meeting.heard(first)
    assert hello == {"welcome": {"ports": [1, 2]}, "live": []}
    assert meeting.guests.starting() == ["actor/0", "actor/2", "actor/1"]
    first.send(signs={}, starting=[])
    assert meeting.heard(first) == [{"here": True}]
    assert meeting.guests.starting() == ["actor/0", "actor/2"]
    first.close()
    meeting.until(lambda: meeting.said)
    assert meeting.said == ["h2 is lost, with actor/1; it may come back"]
    assert meeting.heard(meeting.call(2, "another"))
    assert meeting.said[1:] == ["h2 is back"]
    meeting.guests.check()


def test_ranks_are_started_where_they_belong_and_again_when_their_host_is_back(meeting):
    rank = meeting.posts[2]
    settings = Settings(gang="learner", environment=(("WHERE", "10.0.0.1:5"),))
    handle = meeting.guests.start(rank, settings)
    order = {"name": "learner/1", "environment": [["WHERE", "10.0.0.1:5"]]}
    one = meeting.call(1)
    assert meeting.heard(one)[0]["live"] == [[0, order]]
    one.send(signs={"learner/1": [0.5, None]}, starting=[])
    meeting.heard(one)
    alive, loop = meeting.board.read(rank.row)
    assert alive > 0.0 == loop
    again = meeting.call(1)  # It has called anew: what it had goes on.
    assert meeting.heard(again)[0]["live"] == [[0, order]]
    again.send(ended=0, status=1, reason="it is on fire", final=True)
    meeting.until(lambda: not handle.running)
    assert (handle.exit_code, handle.reason(), handle.final) == (1, "it is on fire", True)
    killed = meeting.guests.start(rank, settings)
    killed.kill()
    assert [*meeting.heard(again)] == [{"start": 1, **order}, {"kill": 1}]
    assert meeting.heard(meeting.call(1))[0]["live"] == []


def test_a_failure_there_ends_the_run(meeting):
    one = meeting.call(1)
    meeting.heard(one)
    one.send(said="actor/0 failed: it hangs; it is started again in 0.25 s")
    one.send(failed=["actor/0", "it hangs (failure 4 within 60 s)"])
    meeting.until(lambda: meeting.said)
    meeting.guests.poll()
    with pytest.raises(RoleError, match=r"^actor/0 failed: it hangs \(failure 4"):
        meeting.until(meeting.guests.check)
    assert meeting.said == ["h1: actor/0 failed: it hangs; it is started again in 0.25 s"]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            {**FACTS, "versions": {"jax": "0.6.1"}},
            'versions.jax is "0.6.1" on h1 and "0.6.2" on h0',
        ),
        (
            {**FACTS, "asked": {**FACTS["asked"], "config": {"batch_size": 32}}},
            "asked.config.batch_size is 32 on h1 and 64 on h0",
        ),
        ({**FACTS, "asked": {"seed": 0}}, 'asked.config is null on h1 and {"batch_size": 64}'),
    ],
)
def test_a_host_that_is_asked_for_something_else_is_refused(meeting, facts, said):
    (answer,) = meeting.heard(meeting.call(1, facts=facts))
    assert said in answer["refused"]


def test_a_host_takes_part_once_and_others_not_at_all(meeting):
    first = meeting.call(1)
    assert meeting.heard(first)
    (answer,) = meeting.heard(meeting.call(1, "another"))
    assert answer["refused"] == "h1 takes part in this run already"
    for host in (0, 3):
        assert meeting.heard(meeting.call(host)) is None
    stranger = channel.call(meeting.place._replace(token="00" * 32), 2, 10)
    assert meeting.heard(stranger) is None
    stranger.close()
    first.send(signs={}, starting=[])
    assert meeting.heard(first) == [{"here": True}]


@pytest.mark.parametrize(("which", "said"), [([1], "h1 has not"), ([1, 2], "h1, h2 have not")])
def test_a_core_that_nobody_comes_to_ends(meeting, monkeypatch, which, said):
    monkeypatch.setattr(guests, "_COME_SECONDS", -1.0)
    if which == [1, 2]:  # No host has a process of the learner.
        for one in meeting.guests._others:
            one.ranks = []
    with pytest.raises(launch.RunError, match=f"^{said} come within"):
        meeting.guests.check()


class TestGuest:
    def link(self, folder, monkeypatch, seconds):
        monkeypatch.setattr(guest, "_COME_SECONDS", seconds)
        return guest._Link(hosts.Hosts(NAMES, 1, addresses.LOOPBACK), folder, FACTS)

    def test_a_folder_that_is_not_seen(self, tmp_path, monkeypatch):
        link = self.link(tmp_path / "run", monkeypatch, 0.0)
        with pytest.raises(launch.RequestError, match="h1 sees no run that h0 has begun in"):
            link.join(signals.Stop())

    def test_a_core_that_does_not_answer(self, tmp_path, monkeypatch):
        (port,) = addresses.free_ports(1)
        channel.MeetingPlace(addresses.LOOPBACK, port, "5a").write(tmp_path)
        assert (tmp_path / ".meeting.json").stat().st_mode & 0o777 == 0o600
        link = self.link(tmp_path, monkeypatch, 0.0)
        with pytest.raises(launch.RequestError, match=f"h0 does not answer at 127.0.0.1:{port}"):
            link.join(signals.Stop())

    def test_the_core_is_gone(self, meeting, monkeypatch):
        meeting.place.write(meeting.folder)
        link = self.link(meeting.folder, monkeypatch, 60.0)
        link._place = channel.MeetingPlace.read(meeting.folder)
        while "welcome" not in str(link.poll()):
            meeting.guests.poll()
        meeting.close()
        monkeypatch.setattr(guest, "_PATIENCE_SECONDS", -1.0)
        with pytest.raises(launch.RunError, match="the core's host h0 has not answered for"):
            link.poll()
        link.close()

    def test_what_is_refused_is_said(self, meeting, monkeypatch):
        meeting.place.write(meeting.folder)
        link = self.link(meeting.folder, monkeypatch, 60.0)
        link._hello["facts"] = {**FACTS, "asked": None}
        link._place = channel.MeetingPlace.read(meeting.folder)

        def speak():
            while True:
                link.poll()
                meeting.guests.poll()

        with pytest.raises(launch.RequestError, match="asked is null on h1 and"):
            speak()
        link.close()


def test_the_meeting_place_is_taken_back_by_whoever_made_it(tmp_path):
    first = channel.MeetingPlace("10.0.0.1", 1, "a")
    second = channel.MeetingPlace("10.0.0.1", 2, "b")
    first.write(tmp_path)
    second.write(tmp_path)
    first.remove(tmp_path)
    assert channel.MeetingPlace.read(tmp_path) == second
    second.remove(tmp_path)
    assert channel.MeetingPlace.read(tmp_path) is None
    (tmp_path / ".meeting.json").write_text(json.dumps({"address": "10.0.0.1"}))
    assert channel.MeetingPlace.read(tmp_path) is None
