"""Runs on three hosts: namespaces with addresses and names of their own, a Ray node in each."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'troupe[ray]'")

NET = "10.77.0"
BUDGET = 6000  # More than is done before the run is told to hurry.
ROLES = ["counter", "variables", "replay", "learner", "evaluator", "actor/0", "actor/1"]
NODE_SECONDS, ROLE_SECONDS = 180, 120  # On a machine that has other work as well.
_HOST = "unshare --net --uts --mount --pid --ipc --fork --kill-child --mount-proc"
_SWITCH = "unshare --net --fork --kill-child"
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_BACKEND_LOG_LEVEL": "error",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    # A node is given up after some 30 s of silence, and its Ray ends itself when it hears of it.
    "RAY_health_check_failure_threshold": "15",
}

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not os.environ.get("TROUPE_FULL"), reason="takes minutes; set TROUPE_FULL=1"
    ),
    pytest.mark.skipif(
        subprocess.call([*_HOST.split(), "true"], stderr=subprocess.DEVNULL) != 0,
        reason="namespaces are not allowed here",
    ),
]


class Hosts:
    """Hosts h0, h1 and so on at one switch; the file system is that of all."""

    def __init__(self, folder, count):
        self._folder, self._held = folder, []
        self._names = folder / "hosts"
        lines = [f"{NET}.{10 + i} h{i}" for i in range(count)]
        self._names.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        self._switch = self._hold(_SWITCH, "ip link add br0 type bridge && ip link set br0 up")
        self._pids = {}
        for index in range(count):
            self.boot(index)

    def _hold(self, unshare, words):
        """The process on which namespaces hang, once it has done what it is told."""
        process = subprocess.Popen(
            [*unshare.split(), "sh", "-c", f"{words} && echo up && exec sleep infinity"],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._held.append(process)
        assert process.stdout.readline() == "up\n"
        (child,) = (
            pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        )
        return int(child)

    def boot(self, index):
        """Starts a host, and Ray on it."""
        mounts = f"mount -t tmpfs tmpfs /dev/shm && mount --bind {self._names} /etc/hosts"
        ray = "mkdir -p /tmp/ray && mount -t tmpfs tmpfs /tmp/ray"
        words = f"hostname h{index} && {mounts} && {ray} && ip link set lo up"
        pid = self._pids[index] = self._hold(_HOST, words)
        in_switch = ["nsenter", "-t", str(self._switch), "-n"]
        link = f"ip link add tv{index} type veth peer name eth0 netns {pid}"
        subprocess.check_call([*in_switch, "sh", "-c", f"{link} && {self._wire(index)}"])
        own = f"ip addr add {NET}.{10 + index}/24 dev eth0 && ip link set eth0 up"
        subprocess.check_call([*self.on(index), "sh", "-c", own])
        head = "--head --port 6379 --num-cpus 0 --include-dashboard=false"
        size = head if index == 0 else f"--address {NET}.10:6379 --num-cpus 3"
        ray = f"{sys.executable} -m ray.scripts.scripts start --object-store-memory 80000000"
        words = f"{ray} --node-ip-address {NET}.{10 + index} {size}"
        with open(self._folder / f"ray-{index}.txt", "a") as log:
            subprocess.check_call(
                [*self.on(index), *words.split()],
                env={**os.environ, **_QUIET},
                stdout=log,
                stderr=log,
            )

    @staticmethod
    def _wire(index):
        return f"ip link set tv{index} master br0 up"

    def on(self, index):
        """What a command begins with that is to run there."""
        return ["nsenter", "-t", str(self._pids[index]), *["-n", "-u", "-m", "-p", "-i", "--"]]

    def of(self, pid):
        """The host of a process."""
        own = os.readlink(f"/proc/{pid}/ns/net")
        return next(i for i, p in self._pids.items() if os.readlink(f"/proc/{p}/ns/net") == own)

    def kill(self, index):
        """The machine is gone at once."""
        os.kill(self._pids.pop(index), signal.SIGKILL)

    @contextlib.contextmanager
    def cut(self, index):
        """Its cable is out: nobody hears that anything ended."""
        switch = ["nsenter", "-t", str(self._switch), "-n", "ip", "link", "set", f"tv{index}"]
        subprocess.check_call([*switch, "down"])
        yield
        subprocess.check_call([*switch, "up"])

    def close(self):
        """Ends all hosts, and with them all that is there."""
        for process in reversed(self._held):
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.fixture
def hosts(tmp_path):
    before = namespaces()
    made = Hosts(tmp_path, 3)
    yield made
    made.close()
    deadline = time.monotonic() + 20
    while namespaces() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not namespaces() - before
    assert not list(pathlib.Path("/dev/shm").glob("troupe-*-troupe-*"))


def namespaces():
    """Those of networks that any process is in."""
    found = set()
    for path in pathlib.Path("/proc").glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(path))
    return found


@pytest.mark.parametrize("round_", [0, 1, 2])
def test_ten_faults_on_three_hosts(hosts, start, round_):
    run = start(
        "ray",
        prefix=hosts.on(0),
        what="unhurried",
        actors=2,
        steps=BUDGET,
        address=f"{NET}.10:6379",
    )
    took = {}

    def whole(before=frozenset()):
        roles = run.ray_roles()
        return set(roles) >= set(ROLES) and not set(roles.values()) & set(before)

    def fault(name, seconds, hit, lost):
        before, began = {run.ray_roles()[role] for role in lost}, time.monotonic()
        hit()
        run.until(lambda: whole(before), seconds, pause=0.5)
        took[name] = time.monotonic() - began

    run.until(lambda: run.steps() > 0)
    run.until(whole, pause=0.5)
    for name in ROLES:
        kill = lambda name=name: os.kill(run.ray_roles()[name], signal.SIGKILL)  # noqa: E731
        fault(f"kill {name}", ROLE_SECONDS, kill, [name])
    core = hosts.of(run.ray_roles()["learner"])
    stop = lambda: os.kill(run.ray_roles()["actor/0"], signal.SIGSTOP)  # noqa: E731
    fault("stop actor/0", ROLE_SECONDS, stop, ["actor/0"])
    with hosts.cut(3 - core):
        time.sleep(20.0)
    began, steps = time.monotonic(), run.steps()
    run.until(lambda: whole() and run.steps() > steps, NODE_SECONDS, pause=0.5)
    took["cut the other host"] = time.monotonic() - began
    core = hosts.of(run.ray_roles()["learner"])
    on_core = [role for role, pid in run.ray_roles().items() if hosts.of(pid) == core]
    saved = run.manifest["counters"]
    fault("kill the core's host", NODE_SECONDS, lambda: hosts.kill(core), on_core)
    assert hosts.of(run.ray_roles()["learner"]) == 3 - core
    run.tell()
    assert run.wait() == 0, run.tail()
    result = run.result
    print(took, saved["actor_steps"], result["actor_steps"], result["samples_per_insert"])
    print(run.output)
    assert BUDGET - 2 < result["actor_steps"] <= BUDGET
    assert result["samples_per_insert"]["observed"] == pytest.approx(2.0, rel=0.05)
    assert run.manifest["counters"]["life"] > saved["life"]
