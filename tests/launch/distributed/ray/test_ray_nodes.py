"""Runs in a cluster of several nodes: raylets of this machine, each with an address of its own."""

import contextlib
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

import jax
import pytest

from troupe.baselines.command.line import main

pytest.importorskip("ray", reason="Ray is not installed: pip install 'troupe[ray]'")

from ray import cluster_utils

from ....processes import state_and_parent
from ..hosts import allowed

BUDGET = 1200
RANKS = ["learner/0", "learner/1"]
FULL = bool(os.environ.get("TROUPE_FULL"))
MOUNTS = subprocess.call(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL) == 0
_STORE_BYTES = 80_000_000


def alive(pids):
    return [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]


def raylet(node):
    """The process of a node that all others of it are children of."""
    return node.all_processes["raylet"][0].process.pid


class Nodes:
    """A cluster whose first node has an address of this machine that is not loopback's."""

    def __init__(self):
        self._cluster = cluster_utils.Cluster()
        self._count = 0
        self.add(0, include_dashboard=False)  # Runs are begun here, and roles are elsewhere.
        self.address = self._cluster.address
        self.others = [self.add(2), self.add(2)]

    def add(self, cpus, **options):
        """Another node, with so many processors."""
        if self._count:
            options["node_ip_address"] = f"127.0.0.{self._count + 1}"
        self._count += 1
        options = {"num_cpus": cpus, "object_store_memory": _STORE_BYTES, **options}
        try:
            return self._cluster.add_node(**options)
        except Exception:  # It was too late for Ray's own limit, on a machine with other work.
            return self._cluster.add_node(**options)

    @contextlib.contextmanager
    def one_that_differs(self, path, folder):
        """Another node, where modules of another path are, and a folder is empty if that may be."""
        self._count += 1
        ray = f"{sys.executable} -m ray.scripts.scripts start --address {self.address} --block"
        size = f"--num-cpus 1 --object-store-memory {_STORE_BYTES}"
        command = f"{ray} --node-ip-address 127.0.0.{self._count} {size}"
        if MOUNTS:
            command = f"unshare --mount sh -c 'mount -t tmpfs none {folder} && exec {command}'"
        process = subprocess.Popen(
            shlex.split(command),
            env={
                **os.environ,
                "PYTHONPATH": f"{path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with process:
            try:
                assert any("Ray runtime started" in line for line in process.stdout)
                yield
            finally:
                process.terminate()

    def of(self, pid):
        """The node of a role's process."""
        _, parent = state_and_parent(pid)
        return next(node for node in self.others if raylet(node) == parent)

    def remove(self, node):
        """Ends a node at once, with all that is there."""
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self):
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes():
    quiet = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        "RAY_BACKEND_LOG_LEVEL": "error",
        "RAY_worker_niceness": "0",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in quiet.items():
            patch.setenv(name, value)
        cluster = Nodes()
        yield cluster
        cluster.close()


@pytest.mark.long
def test_what_a_cluster_has_not(nodes, capsys, tmp_path):
    refused(nodes, capsys, tmp_path, "--actors 25", ["the run needs 4.125 CPU", "has 4 on 3 nodes"])
    refused(nodes, capsys, tmp_path, "--learner-gpus 2", ["needs 2 GPU", "has 0 on 3 nodes"])
    words = ["no node of the Ray cluster", "room for one more role of 3 CPU", "(127.0.0.2): 2 CPU"]
    refused(nodes, capsys, tmp_path, "--actor-cpus 3", words)


@pytest.mark.long
def test_nodes_must_be_alike(nodes, capsys, tmp_path):
    path, folder = other_jax(tmp_path), tmp_path / "folder"
    folder.mkdir()
    with nodes.one_that_differs(path, folder):
        words = ["node ", "(127.0.0.", "has jax 0.1.2", f"this one has {jax.__version__}"]
        refused(nodes, capsys, folder, "", words)
        shutil.rmtree(path)
        words = ["node ", f"does not see {folder / 'run'}", "that all nodes share"]
        if MOUNTS:
            refused(nodes, capsys, folder, "", words)


@pytest.mark.long
@pytest.mark.skipif(allowed() and not FULL, reason="shown on three hosts; set TROUPE_FULL=1")
@pytest.mark.parametrize("hosts", [1, 2])
def test_the_node_of_the_core_is_lost(nodes, start, hosts):
    ranks = RANKS[:hosts] if hosts > 1 else ["learner"]
    roles = {"actors": 2, "learner_hosts": hosts, "address": nodes.address}
    run = start("ray", what="unhurried", steps=BUDGET, **roles)
    run.until(lambda: run.steps() > 0)
    run.until(lambda: len(run.ray_roles()) == 6 + hosts, pause=0.5)
    before, lost = run.ray_roles(), nodes.of(run.ray_roles()[ranks[0]])
    assert len({raylet(nodes.of(before[rank])) for rank in ranks}) == hosts
    nodes.others.remove(lost)
    parent = raylet(lost)
    saved = run.manifest["counters"]
    nodes.remove(lost)
    run.until(lambda: "goes on elsewhere from its newest checkpoint" in run.output)
    # One of the actors has no place until there is another node.
    nodes.others.append(nodes.add(2))
    run.until(lambda: len(run.ray_roles()) == 6 + hosts and not alive(before.values()), pause=0.5)
    after = run.ray_roles()
    assert nodes.of(after[ranks[0]]) == nodes.of(after["counter"]) == nodes.others[0]
    assert nodes.others[1] in {nodes.of(after[name]) for name in ("actor/0", "actor/1")}
    run.tell()
    assert run.wait() == 0, run.tail()
    result, counters = run.result, run.manifest["counters"]
    assert (saved["incarnation"], counters["incarnation"]) == (0, 1)
    assert BUDGET - 2 < result["actor_steps"] <= BUDGET
    assert result["samples_per_insert"]["observed"] == pytest.approx(2.0, rel=0.05)
    rows = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    steps = [row["actor_steps"] for row in rows if row["kind"] == "train"]
    assert steps == sorted(steps)
    evaluated = [row["evaluated"] for row in rows if row["kind"] == "evaluation"]
    assert set(evaluated[:-1]) <= {2}
    assert evaluated[-1] == 3
    assert not alive(after.values())
    assert not list(pathlib.Path("/dev/shm").glob(f"troupe-{run.process.pid}-*"))
    # A machine that is lost takes its memory with it; here the next run removes what was of it.
    for node in nodes.others:
        assert not list(pathlib.Path("/dev/shm").glob(f"troupe-{raylet(node)}-*"))
    for folder in pathlib.Path("/dev/shm").glob(f"troupe-{parent}-*"):
        shutil.rmtree(folder)


@pytest.mark.long
@pytest.mark.skipif(not FULL, reason="takes a minute; set TROUPE_FULL=1")
def test_a_node_that_joins_has_another_jax(nodes, start, tmp_path):
    run = start("ray", what="unhurried", steps=BUDGET, actors=3, address=nodes.address)
    run.until(lambda: run.steps() > 0)
    run.until(lambda: len(run.ray_roles()) == 8, pause=0.5)
    lost = next(n for n in nodes.others if n != nodes.of(run.ray_roles()["learner"]))
    nodes.others.remove(lost)
    nodes.remove(lost)
    run.until(lambda: len(run.ray_roles()) < 8, pause=0.5)
    other = nodes.add(
        2, env_vars={"PYTHONPATH": f"{other_jax(tmp_path)}:{os.environ.get('PYTHONPATH', '')}"}
    )
    run.until(lambda: "failed: its node has jax 0.1.2, and this one has" in run.output, pause=0.5)
    nodes.others.append(nodes.add(2))
    run.until(lambda: len(run.ray_roles()) == 8, pause=0.5)
    assert all(raylet(nodes.of(pid)) != raylet(other) for pid in run.ray_roles().values())
    run.tell()
    assert run.wait() == 0, run.tail()
    assert BUDGET - 2 < run.result["actor_steps"] <= BUDGET
    nodes.remove(other)


def other_jax(folder):
    """A path of modules where jax is another, by what is said of it."""
    info = folder / "path" / "jax-0.1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: jax\nVersion: 0.1.2\n")
    return info.parent


def refused(nodes, capsys, folder, request_, words):
    out = pathlib.Path(folder) / "run"
    arguments = ["train", "dqn", "--env", "CartPole-v1", "--out", str(out), "--launch", "ray"]
    assert main([*arguments, "--address", nodes.address, *request_.split()]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("troupe: ")
    for word in words:
        assert word in error, error
    assert not out.exists()
    assert not list(folder.glob(".troupe*"))
