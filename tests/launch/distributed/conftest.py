"""Launches real programs, watches their processes, and leaves none behind."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from troupe.launch.distributed import addresses

from ...processes import children

USERLAND = pathlib.Path(__file__).with_name("userland.py")


class Run:
    """A program of `userland.py`, in a session of its own."""

    #: Seconds within which what failed is back. The contract's 30 are those of a machine that does
    #: nothing else, as with TROUPE_FULL=1: beside other tests, that it comes back is what is asked.
    RECOVERY = 30.0 if os.environ.get("TROUPE_FULL") else 150.0

    def __init__(self, out, kind, prefix=(), script=USERLAND, **settings):
        """Starts it, where a prefix says that, on another host."""
        self.out = pathlib.Path(out)
        values = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
        environment = {**os.environ, "XLA_FLAGS": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
        self._output = self.out.with_suffix(f".{time.monotonic_ns()}.txt")
        with open(self._output, "w") as output:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, str(script), kind, str(self.out), *values],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def output(self):
        return self._output.read_text()

    @property
    def result(self):
        return json.loads((self.out / "result.json").read_text())

    @property
    def manifest(self):
        newest = max((self.out / "checkpoints").glob("checkpoint-*"))
        return json.loads((newest / "manifest.json").read_text())

    def zygotes(self):
        """Process ids of those from which roles are forked."""
        return children(self.process.pid)

    def roles(self):
        """Process ids of the roles by name."""
        found = {}
        for zygote in self.zygotes():
            for pid in children(zygote):
                try:
                    found[pathlib.Path(f"/proc/{pid}/comm").read_text().strip()] = pid
                except OSError:
                    continue
        return found

    def ray_roles(self):
        """Process ids of the roles by name, where they are Ray's actors: by their log files."""
        found = {}
        for link in pathlib.Path("/proc").glob("[0-9]*/fd/1"):
            try:
                log = pathlib.Path(os.readlink(link))
            except OSError:
                continue
            if log.parent == self.out / "logs":
                found[log.stem.replace("-", "/")] = int(link.parts[2])
        return found

    def listening(self):
        """The addresses on which the roles listen, by port."""
        inodes = set()
        for pid in self.roles().values():
            for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                try:
                    inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(link)))
                except OSError:
                    continue
        ports = set()
        for table in ("tcp", "tcp6"):
            for line in pathlib.Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    ports.add(int(fields[1].split(":")[1], 16))
        return {port: addresses.listening(port) for port in ports}

    def tell(self):
        """Lets go what waits until it is told."""
        self.out.with_suffix(".told").touch()

    def until(self, condition, seconds=300.0, pause=0.05):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited {seconds} s in vain\n{self.tail()}"
            assert self.process.poll() is None, self.tail()
            time.sleep(pause)

    def steps(self):
        """Actor steps that the newest row of metrics says; 0 before the first."""
        try:
            lines = (self.out / "metrics.jsonl").read_text().splitlines()
            return json.loads(lines[-1])["actor_steps"]
        except (OSError, IndexError, ValueError):
            return 0

    def wait(self, seconds=300.0):
        """The exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end within {seconds} s\n{self.tail()}") from None

    def tail(self):
        logs = [f"{p.name}: {p.read_text()[-800:]}" for p in sorted(self.out.glob("logs/*.log"))]
        return "\n".join([self.output[-3000:], *logs])

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def alive(pids):
    return [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]


@pytest.fixture
def start(tmp_path):
    """`start(kind, **settings) -> Run`; `out` names the directory below the test's own."""
    yield from _starter(tmp_path)


@pytest.fixture(scope="module")
def start_once(tmp_path_factory):
    """`start`, for runs that several tests of a file look at."""
    yield from _starter(tmp_path_factory.mktemp("runs"))


def _starter(folder):
    runs = []

    def make(kind="processes", out="run", **settings):
        runs.append(Run(folder / out, kind, **settings))
        return runs[-1]

    yield make
    for run in runs:
        run.close()
