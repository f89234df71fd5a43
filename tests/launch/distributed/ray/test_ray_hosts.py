"""Runs on three hosts: namespaces with addresses and names of their own, a Ray node in each."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'troupe[ray]'")

from troupe.launch.logging import metrics

from ..hosts import Hosts, allowed

BUDGET = 6000  # More than is done before the run is told to hurry.
ROLES = ("counter", "variables", "replay", "learner", "evaluator", "actor/0", "actor/1")
NODE_SECONDS, ROLE_SECONDS = 180, 120  # On a machine that has other work as well.
_RAY = [sys.executable, "-m", "ray.scripts.scripts"]
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_BACKEND_LOG_LEVEL": "error",
    "RAY_worker_niceness": "0",
    # For a token in the home directory, left by another use of Ray, the head alone would ask.
    "RAY_AUTH_MODE": "disabled",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
}

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not allowed(), reason="namespaces are not allowed here"),
]


class RayHosts(Hosts):
    """The first is the head, which has no roles; the others have room for all of them each."""

    def __init__(self, folder, misses, head_cpus=0):
        """Takes how many signs of life a node may miss until Ray gives it up."""
        self._folder, self._head_cpus = folder, head_cpus
        self._environment = {
            **os.environ,
            **_QUIET,
            "RAY_health_check_failure_threshold": str(misses),
        }
        super().__init__(folder, 3, ["/tmp/ray"])
        self.address_of_ray = f"{self.address(0)}:6379"

    def ray(self, *indices):
        """Starts Ray on hosts, again where it is too late for its own limits."""
        for _ in range(3):
            starting = {index: self._ray(index) for index in indices}
            indices = [index for index, process in starting.items() if process.wait() != 0]
            for index in indices:
                subprocess.check_call([*self.on(index), *_RAY, "stop", "--force"])
        assert not indices, self._log(indices[0]).read_text()[-2000:]

    def _log(self, index):
        return self._folder / f"ray-{index}.txt"

    def _ray(self, index):
        head = f"--head --port 6379 --num-cpus {self._head_cpus} --include-dashboard=false"
        size = head if index == 0 else f"--address {self.address(0)}:6379 --num-cpus 4"
        words = (
            f"start --object-store-memory 80000000 --node-ip-address {self.address(index)} {size}"
        )
        with open(self._log(index), "a") as log:
            return subprocess.Popen(
                [*self.on(index), *_RAY, *words.split()],
                env=self._environment,
                stdout=log,
                stderr=log,
            )


@pytest.fixture
def hosts(tmp_path, request):
    with RayHosts(tmp_path, request.param) as made:
        made.ray(0)
        made.ray(1, 2)
        yield made
    assert not list(pathlib.Path("/dev/shm").glob("troupe-*-troupe-*"))


class Faults:
    """A run that faults happen to, of which each has the seconds it took to be whole again."""

    def __init__(self, run, hosts, learners=1):
        self.run, self._hosts, self.took = run, hosts, {}
        ranks = [f"learner/{i}" for i in range(learners)] if learners > 1 else ["learner"]
        self.names = [*ranks, *(name for name in ROLES if name != "learner")]
        self._rank = ranks[0]
        run.until(lambda: run.steps() > 0)
        run.until(self.whole, pause=0.5)
        run.until(lambda: list(run.out.glob("checkpoints/checkpoint-*/manifest.json")), pause=0.5)

    def whole(self, before=frozenset()):
        """Whether all roles run, and in other processes than before."""
        roles = self.run.ray_roles()
        return set(roles) >= set(self.names) and not set(roles.values()) & set(before)

    @property
    def core(self):
        """The host of the core."""
        return self._hosts.of(self.run.ray_roles()[self._rank])

    def on(self, host):
        """Names of the roles of a host."""
        return [name for name, pid in self.run.ray_roles().items() if self._hosts.of(pid) == host]

    def hit(self, what, seconds, lost, fault):
        """Has a fault happen, and waits for other processes in the place of those lost.

        No count is then less than it was in the checkpoint that was there.
        """
        before, saved = {self.run.ray_roles()[name] for name in lost}, self.run.manifest["counters"]
        began = time.monotonic()
        fault()
        self.run.until(lambda: self.whole(before), seconds, pause=0.5)
        self.took[what] = round(time.monotonic() - began, 1)
        self.run.until(lambda: self.run.steps() >= saved["actor_steps"], seconds, pause=0.5)
        newest = self.run.manifest["counters"]
        for name in ("actor_steps", "learner_steps", "episodes"):
            assert newest[name] >= saved[name], (what, name)

    def signal(self, name, number):
        """Sends a signal to a role."""
        pid = self.run.ray_roles()[name]
        what = f"{signal.Signals(number).name} {name}"
        # All of a gang are started again.
        lost = [one for one in self.names if one == name or {one[:8], name[:8]} == {"learner/"}]
        self.hit(what, ROLE_SECONDS, lost, lambda: os.kill(pid, number))

    def cut(self, host, seconds):
        """Has the cable of a host out for a while; the run goes on with all roles."""
        self._hosts.cable(host, "down")
        time.sleep(seconds)
        self._hosts.cable(host, "up")
        steps, began = self.run.steps(), time.monotonic()
        whole = lambda: self.whole() and self.run.steps() > steps  # noqa: E731
        self.run.until(whole, NODE_SECONDS, pause=0.5)
        self.took[f"cable out for {seconds:g} s"] = round(time.monotonic() - began, 1)

    def lose_core(self, silently=False):
        """Ends the host of the core at once; the run goes on with the other."""
        lost, saved = self.core, self.run.manifest["counters"]

        def end():
            if silently:  # No packet of it says that anything ended.
                self._hosts.cable(lost, "down")
            self._hosts.kill(lost)

        self.hit("the core's host", NODE_SECONDS, self.on(lost), end)
        assert self.core == 3 - lost
        return saved

    def end(self, saved):
        """Has the run end, which has its budget and pace."""
        self.run.tell()
        assert self.run.wait() == 0, self.run.tail()
        result, counters = self.run.result, self.run.manifest["counters"]
        print(self.took, saved["actor_steps"], result["actor_steps"], result["samples_per_insert"])
        assert BUDGET - 2 < result["actor_steps"] <= BUDGET
        assert result["samples_per_insert"]["observed"] == pytest.approx(2.0, rel=0.05)
        assert counters["incarnation"] == saved["incarnation"] + 1
        rows = metrics.read(self.run.out / "metrics.jsonl", "train")
        counts = [row["actor_steps"] for row in rows]
        assert counts == sorted(counts)


def begin(hosts, start, learners=1):
    options = {"actors": 2, "steps": BUDGET, "address": hosts.address_of_ray}
    options |= {"learner_hosts": learners} if learners > 1 else {}
    run = start("ray", prefix=hosts.on(0), what="unhurried", **options)
    return Faults(run, hosts, learners)


@pytest.mark.parametrize("hosts", [5], indirect=True)
def test_a_role_and_a_host_are_lost(hosts, start):
    faults = begin(hosts, start)
    foreign = faults.on(3 - faults.core)
    assert foreign
    assert set(foreign) <= {"actor/0", "actor/1"}
    faults.signal(foreign[0], signal.SIGKILL)
    faults.end(faults.lose_core())


@pytest.mark.skipif(not os.environ.get("TROUPE_FULL"), reason="takes minutes; set TROUPE_FULL=1")
@pytest.mark.parametrize("hosts", [15], indirect=True)  # Some 30 s until a node is given up.
@pytest.mark.parametrize("learners", [1, 2])
@pytest.mark.parametrize("silently", [False, True])
def test_all_faults(hosts, start, learners, silently):
    faults = begin(hosts, start, learners)
    for name in faults.names:
        faults.signal(name, signal.SIGKILL)
    faults.signal("actor/0", signal.SIGSTOP)
    faults.cut(3 - faults.core, 20.0)
    faults.end(faults.lose_core(silently))


def received(hosts, index):
    """Bytes that came to a host by its cable."""
    table = subprocess.check_output([*hosts.on(index), "cat", "/proc/net/dev"], text=True)
    (line,) = (line for line in table.splitlines() if line.strip().startswith("eth0:"))
    return int(line.split(":")[1].split()[0])


FRAMES = """
    train dqn --env fake/image --env.episode_lengths (100,) --env.step_ms 5 --steps 4000
    --evaluate-every 99999
    --launch ray --actors 2 --config.num_envs 1 --config.min_replay_size 3900
    --config.samples_per_insert 0.5 --config.batch_size 4 --config.steps_per_dispatch 1
"""


@pytest.mark.skipif(not os.environ.get("TROUPE_FULL"), reason="takes a minute; set TROUPE_FULL=1")
def test_frames_cross_the_cable_once(tmp_path):
    out, log = tmp_path / "run", tmp_path / "said.txt"
    with RayHosts(tmp_path, 15, head_cpus=1) as hosts, open(log, "w") as said:
        hosts.ray(0)
        hosts.ray(1)  # Only here is room for actors.
        words = [*FRAMES.split(), "--address", hosts.address_of_ray, "--out", str(out)]
        command = [*hosts.on(0), sys.executable, "-m", "troupe", *words]
        run = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            counted = 0
            while not counted:
                assert run.poll() is None, log.read_text()
                time.sleep(0.02)  # What crosses meanwhile is counted for steps that are not.
                if (rows := out / "metrics.jsonl").exists():
                    steps = [row["actor_steps"] for row in metrics.read(rows, "train")]
                    counted = max(steps, default=0)
            before = received(hosts, 0)
            assert run.wait(400) == 0, log.read_text()
            crossed = received(hosts, 0) - before
        finally:
            run.kill()
            run.wait()
    frames = crossed / (84 * 84)  # Of a stack of four, the newest.
    ratio = frames / (4000 - counted)
    print(f"{crossed:,} bytes for {4000 - counted} steps: {ratio:.3f} frames each")
    assert 1.0 < ratio < 1.2
