"""What other frameworks got wrong in silence, one test each: here, in distributed programs."""

import json
import os
import signal
import time
import types

import dm_env
import numpy as np
import pytest
from dm_env import specs

from troupe.agents.replay import ReplaySpec, Transitions
from troupe.launch.distributed import addresses
from troupe.launch.logging import metrics

lp = pytest.importorskip("launchpad")
reverb = pytest.importorskip("reverb")
replay_on_reverb = pytest.importorskip("troupe.agents.replay.reverb")
launcher = pytest.importorskip("troupe.launch.distributed.engines.launchpad.launcher")
base = pytest.importorskip("troupe.launch.distributed.engines.launchpad.program_nodes")
calls = pytest.importorskip("troupe.launch.distributed.engines.launchpad.courier_client")

pytestmark = pytest.mark.distributed

LEAST, MOST, FURTHER = 1000, 2400, 2100
EVERY_STEPS, EVERY_SECONDS = 500, 1.0


@pytest.fixture(scope="module")
def resumed(start_once):
    """A run that is stopped from outside and goes on in other processes, to its budget.

    First it saves every so many steps and at no time besides, then every so many seconds. It has
    an inference server, of which nothing is said but that there is one.
    """
    settings = {"actors": 2, "inference_servers": 1, "keep": 100, "least": LEAST, "evaluate": 1200}
    # No machine does more than 500 steps a second: two actors with two environments, in turn.
    settings |= {"what": "fine", "step_ms": 4.0}
    first = start_once(steps=10**9, every=1e6, every_steps=EVERY_STEPS, **settings)
    first.until(lambda: first.steps() > 3 * EVERY_STEPS)
    first.process.send_signal(signal.SIGTERM)
    assert first.wait() == 1, first.tail()
    stopped = manifests(first.out)
    budget = saved_steps(stopped)[-1] + FURTHER
    second = start_once(steps=budget, every=EVERY_SECONDS, resume=True, **settings)
    second.until(lambda: len(second.roles()) == 8)
    roles = list(second.roles().values())
    code = second.wait()
    return types.SimpleNamespace(
        first=first,
        second=second,
        stopped=stopped,
        budget=budget,
        roles=roles,
        code=code,
        out=second.out,
    )


def manifests(out):
    """Those of all checkpoints, the oldest first, with the time at which each was written."""
    paths = sorted(out.joinpath("checkpoints").glob("checkpoint-*/manifest.json"))
    return [
        {**json.loads(path.read_text()), "time": path.stat().st_mtime, "name": path.parent.name}
        for path in paths
    ]


def saved_steps(found):
    return [manifest["counters"]["actor_steps"] for manifest in found]


@pytest.mark.long
def test_the_learner_saves_at_the_configured_period(resumed):
    """A period that the distributed learner has of its own, whatever was configured."""
    steps = saved_steps(resumed.stopped)
    assert steps[0] == 0
    # The last one is that of the signal. Actors report every quarter of a second.
    periods = np.diff(steps[:-1])
    assert len(periods) >= 2
    assert (periods >= EVERY_STEPS).all()
    assert (periods < 2 * EVERY_STEPS).all()
    times = [one["time"] for one in manifests(resumed.out)[len(resumed.stopped) :]]
    periods = np.diff(times[:-1])
    assert len(periods) >= 2
    assert (periods > 0.9 * EVERY_SECONDS).all()
    assert np.median(periods) < 4 * EVERY_SECONDS


@pytest.mark.long
def test_another_launch_finds_the_checkpoints(resumed):
    """Paths with a time stamp of the process in them, which no later process asks for."""
    names = [one["name"] for one in manifests(resumed.out)]
    assert names == [f"checkpoint-{number:08d}" for number in range(1, len(names) + 1)]
    before = saved_steps(resumed.stopped)[-1]
    assert f"from {resumed.stopped[-1]['name']} at {before:,} actor steps" in resumed.second.output
    assert all(
        steps >= before for steps in saved_steps(manifests(resumed.out))[len(resumed.stopped) :]
    )
    assert 0 <= resumed.budget - resumed.second.result["actor_steps"] < 2


@pytest.mark.long
def test_another_launch_finds_the_replay(resumed):
    """Replay checkpoints in a temporary directory."""
    kept = resumed.stopped[-1]["counters"]["replay"]["folder"]
    newest = manifests(resumed.out)[-1]["counters"]["replay"]["folder"]
    assert kept != newest
    assert (resumed.out / "replay" / newest).is_dir()
    assert FURTHER < MOST - 100 < resumed.budget - 100
    last = list(metrics.read(resumed.out / "metrics.jsonl"))[-1]
    # What was written after the stop would not fill it.
    assert last["replay_size"] > MOST - 50


@pytest.mark.long
def test_inference_needs_no_batch_size(resumed):
    """Inference servers that work only where a batch size was set."""
    for run in (resumed.first, resumed.second):
        assert "inference failed" not in run.output
    assert resumed.second.result["evaluation"][-1]["episodes"] == 3


@pytest.mark.long
def test_gradient_steps_follow_from_samples_per_insert(resumed):
    """A ratio of items that is read as one of gradient steps, or missed by a tenth of the least
    replay."""
    result = resumed.second.result
    due = (result["actor_steps"] - LEAST) * 2.0 / 4  # Batches of four.
    # Actors write on for a moment while the run is stopped, and what they wrote is kept.
    assert result["learner_steps"] == pytest.approx(due, rel=0.05)
    assert result["samples_per_insert"]["observed"] == pytest.approx(2.0, rel=0.015)


@pytest.mark.long
def test_a_spent_budget_ends_all_processes(resumed):
    """A program that has done its work and stays."""
    assert resumed.code == 0, resumed.second.tail()
    assert not [pid for pid in resumed.roles if os.path.exists(f"/proc/{pid}")]


@pytest.fixture(scope="module")
def doomed(start_once):
    """A run whose episodes never end, which loses an actor and then, for good, its learner."""
    run = start_once(out="doomed", what="endless", actors=2, steps=10**9, mortal=True)
    run.until(lambda: run.steps() > 500)
    lost = run.roles()["actor/0"]
    os.kill(lost, signal.SIGKILL)
    run.until(lambda: run.roles().get("actor/0", lost) != lost, run.RECOVERY)
    run.tell()
    return types.SimpleNamespace(run=run, code=run.wait())


@pytest.mark.long
def test_a_run_ends_with_its_learner(doomed):
    """Going on without a learner, or ending as if all were well."""
    assert doomed.code == 1, doomed.run.tail()
    last = doomed.run.output.strip().splitlines()[-1]
    assert last.startswith("troupe: learner failed: RuntimeError: out of memory on the device")
    assert not (doomed.run.out / "result.json").exists()


@pytest.mark.long
def test_a_lost_role_is_started_again(doomed):
    """Nodes that nobody starts again."""
    assert "actor/0 failed: killed by SIGKILL; it is started again" in doomed.run.output


@pytest.mark.long
def test_steps_count_before_their_episode_ends(doomed):
    """Counters that only an episode's end brings up to date."""
    rows = list(metrics.read(doomed.run.out / "metrics.jsonl"))
    assert {row["episodes"] for row in rows} == {0}
    assert rows[-1]["actor_steps"] > 500


def test_a_call_of_a_role_that_is_gone_comes_back():
    """Clients that wait for a dead server without limit."""
    address = lp.Address("gone")
    address.bind(launcher.HostAddress(addresses.LOOPBACK, *addresses.free_ports(1)))
    remote = base.RemoteHandle(address, "ghost").dereference()
    began = time.monotonic()
    with pytest.raises(calls.Unreachable, match="no answer from the ghost"):
        remote.look()
    assert time.monotonic() - began < 2 * calls.CALL_SECONDS


SPEC = types.SimpleNamespace(
    observations=specs.Array((1,), np.float32), actions=specs.Array((), np.int32)
)


def timestep(number):
    """Of a vector of one environment, whose episode goes on."""
    return dm_env.TimeStep(
        np.array([min(number, 1)], np.int32),
        np.zeros(1, np.float32),
        np.ones(1, np.float32),
        np.full((1, 1), number, np.float32),
    )


@pytest.fixture
def connect():
    """Makes an adder and a reader of a replay in a server of its own."""
    made = []

    def make(**spec):
        spec = ReplaySpec(item=Transitions(1), batch_size=8, **spec)
        server = reverb.Server(replay_on_reverb.make_tables(spec, SPEC))
        arguments = spec, SPEC, (), f"127.0.0.1:{server.port}"
        adder = replay_on_reverb.ReverbAdder(*arguments, num_envs=1)
        reader = replay_on_reverb.ReverbReplay(*arguments)
        made.extend([server.stop, reader.close, adder.close])
        return adder, reader

    yield make
    for close in reversed(made):
        close()


def write(adder, first, last):
    if first == 0:
        adder.add_first(timestep(0))
    for number in range(max(first, 1), last):
        adder.add(np.zeros(1, np.int32), timestep(number))


def test_the_learner_draws_as_soon_as_there_is_enough(connect):
    """Drawing at exactly the least size waits for ever where the writer still holds the last
    item."""
    adder, reader = connect(min_size=8, max_size=100)
    write(adder, 0, 9)  # Eight transitions, by the thread that draws; nothing is flushed.
    assert reader.wait(10)
    assert reader.sample().data.observation.shape == (8, 1)


def test_a_pipeline_reads_ahead_a_little_only(connect):
    """Several parallel calls of a data pipeline in place of one: the learner then learns from what
    was drawn long ago, and returns change in silence."""
    adder, reader = connect(max_size=100)
    write(adder, 0, 101)
    adder.flush()
    assert reader.wait(10)
    drawn, settled = 0, 0
    while settled < 20:  # Until it has read ahead as far as it does.
        before, drawn = drawn, reader.sampled
        settled = settled + 1 if drawn == before else 0
        time.sleep(0.1)
    write(adder, 101, 301)  # What was there before is gone.
    adder.flush()
    stale = 0
    while reader.sample().data.observation.min() < 100:
        stale += 1
        assert stale <= 5
