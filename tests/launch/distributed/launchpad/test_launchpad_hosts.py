"""Programs of Launchpad over hosts: namespaces with addresses and names of their own."""

import os
import pathlib
import signal
import socket
import struct
import subprocess
import time

import pytest

pytest.importorskip("launchpad")

from ..hosts import Hosts, allowed
from ..test_gang_numbers import two_learn_what_one_learns

NAMES = "h0,h1,h2"
FULL = pytest.mark.skipif(not os.environ.get("TROUPE_FULL"), reason="minutes; set TROUPE_FULL=1")

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.long,
    pytest.mark.skipif(not allowed(), reason="namespaces are not allowed here"),
]


@pytest.fixture
def hosts(tmp_path):
    with Hosts(tmp_path, 3) as made:
        yield made


@pytest.fixture
def begin(start, hosts):
    """`begin(*indices, **settings)`: the same begun on these hosts, a `Run` for each."""

    def make(*indices, **settings):
        given = {"hosts": NAMES, "actors": 2, **settings}
        return [start("processes", prefix=hosts.on(index), **given) for index in indices]

    return make


def listening(hosts, index):
    """The addresses on which anything of a host listens."""
    tables = ["cat", "/proc/net/tcp", "/proc/net/tcp6"]
    text = subprocess.check_output([*hosts.on(index), *tables], text=True)
    found = set()
    for fields in map(str.split, text.splitlines()):
        if len(fields) > 3 and fields[3] == "0A":
            words = fields[1].split(":")[0]
            raw = b"".join(
                struct.pack("=I", int(words[i : i + 8], 16)) for i in range(0, len(words), 8)
            )
            family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
            found.add(socket.inet_ntop(family, raw).removeprefix("::ffff:"))
    return found


def ended_well(hosts, runs, budget, observed=2.0):
    for index, run in enumerate(runs):
        assert run.wait() == 0, run.tail()
        # Of it nothing is left there.
        assert subprocess.check_output([*hosts.on(index), "ls", "/dev/shm"], text=True) == ""
    assert not runs[0].ray_roles()
    result = runs[0].result
    assert budget - 2 < result["actor_steps"] <= budget
    assert result["samples_per_insert"]["observed"] == pytest.approx(observed, rel=0.05)


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=FULL)])
def test_one_program_on_several_hosts(hosts, begin, count):
    budget = 150 * count
    names = ",".join(f"h{index}" for index in range(count))
    runs = begin(
        *range(count),
        steps=budget,
        what="unhurried",
        hosts=names,
        actors=count - 1,
        evaluate=budget,
    )
    core = runs[0]
    core.until(lambda: core.steps() > 100, 240)
    acting = {hosts.of(pid) for name, pid in core.ray_roles().items() if "actor" in name}
    assert acting == set(range(1, count))
    for index in range(count):
        assert listening(hosts, index) <= {hosts.address(index)}
    assert listening(hosts, 0)
    core.tell()
    ended_well(hosts, runs, budget)
    assert "h1 takes part in the run of h0: actor" in runs[1].output
    assert not (core.out / ".meeting.json").exists()
    logs = {path.name for path in (core.out / "logs").iterdir()}
    assert {"zygote-h0.log", "zygote-h1.log", "learner.log"} <= logs


@FULL
def test_hosts_come_and_go(hosts, begin):
    """A learner over two of them; that of an actor is killed, one's cable is out for 17 s."""
    budget = 6000
    runs = begin(0, 1, 2, steps=budget, what="unhurried", learner_hosts=2)
    core = runs[0]

    def roles():
        return core.ray_roles()

    names = {"learner/0", "learner/1", "actor/0", "actor/1", "replay", "counter", "variables"}
    core.until(lambda: core.steps() > 200 and names <= set(roles()), 240)
    assert [hosts.of(roles()[f"learner/{rank}"]) for rank in (0, 1)] == [0, 1]
    for index in range(3):
        assert listening(hosts, index) <= {hosts.address(index)}

    hosts.kill(2)
    core.until(lambda: "h2 is lost, with actor/1" in core.output, 40)
    hosts.boot(2)
    runs[2] = begin(2, steps=budget, what="unhurried", learner_hosts=2)[0]
    core.until(lambda: "h2 is back" in core.output and "actor/1" in roles(), 60)

    before = roles()
    hosts.cable(2, "down")
    time.sleep(17.0)
    assert runs[2].process.poll() is None
    hosts.cable(2, "up")
    core.until(lambda: core.output.count("h2 is back") == 2, 30)
    steps = core.steps()
    core.until(lambda: core.steps() > steps, 30)
    assert {name: roles().get(name) for name in before} == before  # Nothing was started again.

    ranks = [roles()["learner/0"], roles()["learner/1"]]
    os.kill(ranks[1], signal.SIGKILL)
    core.until(
        lambda: not {roles().get("learner/0"), roles().get("learner/1")} & {*ranks, None}, 60
    )
    saved = core.manifest["counters"]["learner_steps"]
    core.until(lambda: core.manifest["counters"]["learner_steps"] > saved, 60)
    assert "learner/1 failed: killed by SIGKILL; the 2 of its gang are started" in core.output
    core.tell()
    ended_well(hosts, runs, budget)


@FULL
def test_the_core_is_lost_and_the_run_is_gone_on_with(hosts, begin):
    budget = 3000
    core, *others = begin(0, 1, 2, steps=budget, what="unhurried", learner_hosts=2)
    core.until(lambda: core.steps() > 200 and core.manifest["counters"]["actor_steps"] > 200, 240)
    hosts.kill(0)
    began = time.monotonic()
    for other in others:
        assert other.wait(60) == 1
        assert "the core's host h0 has not answered for 30 s; go on from" in other.output
    assert time.monotonic() - began < 45
    assert not [name for name, pid in core.ray_roles().items() if hosts.of(pid) in (1, 2)]
    hosts.boot(0)
    runs = begin(0, 1, 2, steps=budget, what="unhurried", learner_hosts=2, resume=True)
    runs[0].tell()
    ended_well(hosts, runs, budget)


@FULL
def test_a_signal_to_the_core_saves_and_ends_all(hosts, begin):
    core, *others = begin(0, 1, 2, steps=100_000, learner_hosts=2)
    core.until(lambda: core.steps() > 300, 240)
    (inner,) = (
        pathlib.Path(f"/proc/{core.process.pid}/task/{core.process.pid}/children")
        .read_text()
        .split()
    )
    os.kill(int(inner), signal.SIGTERM)
    assert core.wait(60) != 0
    assert "with a checkpoint saved" in core.output
    for other in others:
        assert other.wait(30) == 1
        assert "h0 has ended the run: stopped at" in other.output


@FULL
def test_ranks_on_two_hosts_learn_what_one_process_learns(hosts, tmp_path):
    two_learn_what_one_learns(tmp_path, hosts)
