"""A cluster of SLURM, of the distribution's packages: on hosts of namespaces, or on nodes of this
machine where those are not allowed. Of it nothing is left."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from ...processes import children, state_and_parent
from ..distributed.hosts import Hosts, allowed

_DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_MISSING = [name for name in _DAEMONS if not shutil.which(name, path=_PATH)]
WHY_NOT = (
    "the daemons of SLURM need root"
    if os.geteuid()
    else f"{_MISSING[0]} is not installed: apt-get install slurm-wlm munge"
    if _MISSING
    else ""
)
"""Why there can be no cluster here; empty: there can."""
_CPUS, _SECONDS = 8, 60.0
_NODES_OF_ONE = "n"
_FOLDERS = ["/tmp/ray"]
_CONF = """ClusterName=troupe
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoAddrCache
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdTimeout=6
SlurmctldTimeout=10
KillWait={kill_wait}
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime={grace}
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""


class Slurm:
    """Nodes with room for eight processors' work each, two partitions, and a controller."""

    def __init__(self, folder, count, kill_wait=20, grace=40, played=None):
        """It is there within `with`. Jobs have so many seconds to end, and when pre-empted; a
        script may play what they call troupe and ray."""
        self._commands = {"troupe": "-m troupe", "ray": "-m ray.scripts.scripts"}
        if played is not None:
            self._commands = {name: f"-S {played} {name}" for name in self._commands}
        self._folder = pathlib.Path(folder)
        self._count, self._waits = count, {"kill_wait": kill_wait, "grace": grace}
        self.hosts = Hosts(self._folder, count, _FOLDERS) if allowed() else None
        letter = "h" if self.hosts else _NODES_OF_ONE
        self.names = [f"{letter}{index}" for index in range(count)]
        self._conf = self._folder / "slurm.conf"
        bins = self._folder / "bin"
        self._environment = {
            **os.environ,
            "SLURM_CONF": str(self._conf),
            "PATH": f"{bins}:{_PATH}",
            "XLA_FLAGS": "",
            "RAY_BACKEND_LOG_LEVEL": "error",
        }
        self._daemons, self._nodes = [], {}

    def __enter__(self):
        folder = self._folder
        for name in ("state", "bin", *(f"spool-{name}" for name in self.names)):
            (folder / name).mkdir()
        for name, what in self._commands.items():
            command = folder / "bin" / name
            command.write_text(f'#!/bin/sh\nexec {sys.executable} {what} "$@"\n')
            command.chmod(0o755)
        self._conf.write_text(self._configuration())
        key = folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        folder.chmod(0o755)  # Munge asks it of where its socket is.
        with contextlib.ExitStack() as stack:
            stack.callback(self._require_nothing_left)
            stack.callback(self._sweep)
            if self.hosts:
                stack.enter_context(self.hosts)
            files = {"key-file": key, "socket": folder / "munge.socket"}
            files |= {f"{name}-file": folder / f"munged.{name}" for name in ("pid", "log", "seed")}
            flags = [f"--{name}={path}" for name, path in files.items()]
            self._daemon(None, "munged", "--foreground", "--force", *flags)
            self._until(files["socket"].exists)
            self._daemon(0, "slurmctld", "-D", "-c")
            for index in range(self._count):
                self.node(index)
            self._until(lambda: self._idle() == self._count)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception):
        self._stack.close()

    def _configuration(self):
        lines = [_CONF.format(folder=self._folder, **self._waits)]
        nodes = []
        for index, name in enumerate(self.names):
            where = (
                f"NodeAddr={self.hosts.address(index)} Port=6818"
                if self.hosts
                else f"NodeAddr=127.0.0.1 NodeHostname={os.uname().nodename} Port={16820 + index}"
            )
            nodes.append(f"NodeName={name} {where} CPUs={_CPUS} RealMemory=8000 State=UNKNOWN")
        head = (
            f"{self.names[0]}({self.hosts.address(0)})"
            if self.hosts
            else f"{os.uname().nodename}(127.0.0.1)"
        )
        ports = "" if self.hosts else "SlurmctldPort=16819\n"
        partitions = lines[0].index("PartitionName=main")
        controller = f"SlurmctldHost={head}\n{ports}"
        return "".join(
            [lines[0][:partitions], controller, "\n".join(nodes), "\n", lines[0][partitions:]]
        )

    def on(self, index):
        """What a command begins with that is to run on a node."""
        return self.hosts.on(index) if self.hosts else []

    def _daemon(self, index, *words):
        prefix = self.on(index) if index is not None else []
        with open(self._folder / f"{words[0]}.out", "a") as output:
            process = subprocess.Popen(
                [*prefix, shutil.which(words[0], path=_PATH), *words[1:]],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._daemons.append(process)
        return process

    def node(self, index):
        """Starts the daemon of a node."""
        self._nodes[index] = self._daemon(index, "slurmd", "-D", "-N", self.names[index])

    @contextlib.contextmanager
    def paused(self, index):
        """The daemon of a node answers nobody; what runs there goes on."""
        entered = self._nodes[index].pid
        # What has entered the node for it stops itself once it stops, and lets it go on when it
        # does. Were both stopped from here, it could stop itself a second time, after the end.
        daemon = children(entered)[0] if self.hosts else entered
        os.kill(daemon, signal.SIGSTOP)
        self._until(lambda: state_and_parent(entered)[0] == "T")
        try:
            yield
        finally:
            os.kill(entered, signal.SIGCONT)

    def call(self, *words):
        """What a command of SLURM says."""
        done = subprocess.run(
            [*self.on(0), *words],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            cwd=self._folder,
        )
        assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stderr}"
        return done.stdout.strip()

    def _idle(self):
        with contextlib.suppress(AssertionError):
            return len(self.call("sinfo", "-hN", "-p", "main", "-t", "idle").splitlines())
        return 0

    def _until(self, condition, seconds=_SECONDS):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.tail()
            time.sleep(0.1)

    def tail(self):
        """What its daemons said last."""
        return "\n".join(
            f"{path.name}: {path.read_text()[-2000:]}" for path in self._folder.glob("*.out")
        )

    def submit(self, *words, out=None):
        """A job."""
        return Job(self, self.call("sbatch", "--parsable", *map(str, words)), out)

    def processes(self):
        """Process ids of all that jobs have left, or run."""
        for pid in self._ours():
            with contextlib.suppress(OSError):
                if b"SLURM_JOB_ID=" in pathlib.Path(f"/proc/{pid}/environ").read_bytes():
                    yield pid

    def _ours(self):
        """Process ids of all that was started by this cluster, and by its jobs."""
        mark = f"SLURM_CONF={self._conf}".encode()
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    yield int(path.name)

    def _sweep(self):
        deadline = time.monotonic() + 20
        while (left := list(self._ours())) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._daemons:
                process.poll()  # One that has ended is in the way no more.
            time.sleep(0.1)
        for process in self._daemons:
            process.kill()
            process.wait()

    def _require_nothing_left(self):
        assert not list(self._ours())


class Job:
    """One job, and the run of which it is."""

    def __init__(self, slurm, number, out):
        self._slurm, self.number = slurm, number
        self.out = pathlib.Path(out) if out is not None else None

    def facts(self):
        """What SLURM says of it."""
        said = self._slurm.call("scontrol", "-o", "show", "job", self.number)
        return dict(word.partition("=")[::2] for word in said.split() if "=" in word)

    @property
    def state(self):
        return self.facts()["JobState"]

    @property
    def restarts(self):
        """How often it was queued again."""
        return int(self.facts()["Restarts"])

    @property
    def nodes(self):
        """Indices of its nodes, the first that of the script."""
        said = self._slurm.call("scontrol", "show", "hostnames", self.facts()["NodeList"])
        return [self._slurm.names.index(name) for name in said.split()]

    @property
    def log(self):
        """What its script and its run said."""
        path = self.out.with_name(f"{self.out.name}.{self.number}.log")
        return path.read_text() if path.exists() else ""

    @property
    def steps(self):
        """Actor steps that the newest row of metrics says; 0 before the first."""
        try:
            return json.loads((self.out / "metrics.jsonl").read_text().splitlines()[-1])[
                "actor_steps"
            ]
        except (OSError, IndexError, ValueError):
            return 0

    @property
    def newest(self):
        """Name of the newest checkpoint; None: there is none."""
        folder = self.out / "checkpoints"
        return max((path.name for path in folder.glob("checkpoint-*")), default=None)

    @property
    def saved(self):
        """Counters of the newest checkpoint; empty: there is none."""
        if self.newest is None:
            return {}
        manifest = self.out / "checkpoints" / self.newest / "manifest.json"
        return json.loads(manifest.read_text())["counters"]

    @property
    def result(self):
        return json.loads((self.out / "result.json").read_text())

    def until(self, condition, seconds=240.0):
        """Waits; a job that has ended meanwhile has failed."""
        began = time.monotonic()
        while not condition():
            over = self.state in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
            waited = time.monotonic() - began
            assert waited < seconds, self.tail()
            assert not over or condition(), self.tail()
            time.sleep(0.25)
        return time.monotonic() - began

    def until_again(self, restarts):
        """Waits until it was queued again so often, and runs: SLURM would wait two minutes."""
        took = self.until(lambda: self.restarts == restarts)
        hurried = False
        while (state := self.state) != "RUNNING":
            assert state in ("PENDING", "COMPLETING"), self.tail()
            if state == "PENDING" and not hurried:  # Not before all of it has ended.
                # Nodes refuse what was begun within the second, of their clocks, in which they
                # ended the job: a credential of then counts as revoked, and the job fails.
                self._slurm.call("scontrol", "update", f"JobId={self.number}", "StartTime=now+2")
                hurried = True
            time.sleep(0.5)
        return took

    def until_log(self, words, seconds=240.0):
        """What was said, once these words were."""
        self.until(lambda: words in self.log, seconds)
        return self.log

    def until_over(self, seconds=240.0):
        """The state in which it is once nothing of it runs."""
        deadline = time.monotonic() + seconds
        while self._slurm.call("squeue", "-h", "-j", self.number):
            assert time.monotonic() < deadline, self.tail()
            time.sleep(0.25)
        return self.state

    def tail(self):
        logs = [f"{p.name}: {p.read_text()[-800:]}" for p in sorted(self.out.glob("logs/*.log"))]
        return "\n".join([str(self.facts()), self.log[-3000:], *logs])


requires_slurm = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
