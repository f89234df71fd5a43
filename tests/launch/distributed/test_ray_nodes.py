"""Runs in a cluster of several nodes: raylets of this machine, each with an address of its own."""

import contextlib
import os
import pathlib
import subprocess
import sys

import jax
import pytest

from troupe.baselines.command.line import main

pytest.importorskip("ray", reason="Ray is not installed: pip install 'troupe[ray]'")

from ray import cluster_utils

_STORE_BYTES = 80_000_000


class Nodes:
    """A cluster whose first node has an address of this machine that is not loopback's."""

    def __init__(self):
        self._cluster = cluster_utils.Cluster()
        self._count = 0
        self.head = self.add(2, include_dashboard=False)
        self.address = self._cluster.address

    def add(self, cpus, **options):
        """Another node, with so many processors."""
        if self._count:
            options["node_ip_address"] = f"127.0.0.{self._count + 1}"
        self._count += 1
        return self._cluster.add_node(num_cpus=cpus, object_store_memory=_STORE_BYTES, **options)

    @contextlib.contextmanager
    def one_without(self, folder):
        """Another node, which sees an empty folder in place of this one."""
        self._count += 1
        ray = f"{sys.executable} -m ray.scripts.scripts start --address {self.address} --block"
        size = f"--num-cpus 1 --object-store-memory {_STORE_BYTES}"
        command = f"{ray} --node-ip-address 127.0.0.{self._count} {size}"
        process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none {folder} && exec {command}"],
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

    def remove(self, node):
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self):
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes():
    quiet = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        "RAY_BACKEND_LOG_LEVEL": "error",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in quiet.items():
            patch.setenv(name, value)
        cluster = Nodes()
        yield cluster
        cluster.close()


@pytest.mark.long
def test_what_a_cluster_has_not(nodes, capsys, tmp_path):
    refused(nodes, capsys, tmp_path, "--actors 9", ["the run needs 9 CPU", "has 2 on 1 node"])
    one = nodes.add(1)
    words = ["no node of the Ray cluster", "room for one more role of 3 CPU", "2 CPU", "1 CPU"]
    refused(nodes, capsys, tmp_path, "--actor-cpus 3", words)
    nodes.remove(one)


@pytest.mark.long
def test_a_node_has_another_jax(nodes, capsys, tmp_path):
    other = tmp_path / "other" / "jax-0.1.2.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: jax\nVersion: 0.1.2\n")
    path = f"{other.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    one = nodes.add(1, env_vars={"PYTHONPATH": path})
    words = ["node ", "(127.0.0.", "has jax 0.1.2", f"this one has {jax.__version__}"]
    refused(nodes, capsys, tmp_path, "", words)
    nodes.remove(one)


@pytest.mark.long
@pytest.mark.skipif(
    subprocess.call(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL) != 0,
    reason="mount namespaces are not allowed here",
)
def test_a_node_does_not_see_the_directory(nodes, capsys, tmp_path):
    with nodes.one_without(tmp_path):
        words = ["node ", f"does not see {tmp_path / 'run'}", "that all nodes share"]
        refused(nodes, capsys, tmp_path, "", words)


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
