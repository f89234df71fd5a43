"""Versions of a learner of two processes leave it in parts: nobody has an array whole."""

import json
import os
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from troupe.agents.variables import stored as stored_arrays
from troupe.agents.variables.reader import VariableReader
from troupe.agents.variables.server import VariableServer
from troupe.agents.variables.sync import MeshSync
from troupe.agents.variables.version_board import read_version
from troupe.launch.distributed import addresses

from ....waiting import wait_for
from . import parts

RANKS = 2


@pytest.fixture
def server():
    """A variable server, and the port at which other processes find it."""
    variables = VariableServer()

    class Manager(parts.Manager):
        pass

    Manager.register("server", lambda: variables)
    listening = Manager(("127.0.0.1", 0), parts.KEY).get_server()
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield variables, listening.address[1]
    listening.listener.close()


@pytest.fixture
def ranks(server, tmp_path):
    address = f"{addresses.LOOPBACK}:{addresses.free_ports(1)[0]}"
    flags = "--xla_force_host_platform_device_count=2"
    command = [sys.executable, parts.__file__]
    processes = [
        subprocess.Popen(
            [*command, *map(str, (rank, RANKS, address, tmp_path, server[1]))],
            env={**os.environ, "XLA_FLAGS": flags},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def said(process):
    """The next line of a rank, whose libraries have lines of their own."""
    return next(line for line in process.stdout if line.startswith("{"))


def num_bytes(part):
    """Those of the blocks in a part of a version."""
    leaves = jax.tree.leaves(part)
    return sum(
        values.nbytes for leaf in leaves for _, values in getattr(leaf, "blocks", [(0, leaf)])
    )


@pytest.mark.long
def test_each_rank_lays_down_its_share_and_a_sampler_reads_its_own(
    server, ranks, tmp_path, monkeypatch
):
    alone = parts.make_learner(layout=None)
    (policy,) = alone.get_variables(["policy"])
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(policy))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("model",))
    columns = [NamedSharding(mesh, PartitionSpec(*[None] * i, "model")) for i in (0, 1)]
    shardings = jax.tree.map(lambda leaf: columns[leaf.ndim - 1], policy)
    read = []
    original = stored_arrays.StoredArray.read

    def reading(self, index=None):
        found = original(self, index)
        read.append((self.nbytes, found.nbytes))
        return found

    monkeypatch.setattr(stored_arrays.StoredArray, "read", reading)
    reader = VariableReader(server[0], period=0.01, on_host=True)
    sync = MeshSync(shardings)
    for version in range(3):
        if version:
            alone.step()
            for process in ranks:
                print("step", file=process.stdin, flush=True)
        held = [json.loads(said(process)) for process in ranks]
        # The mesh shares all but what is too small for that.
        assert all(one["all"] == total and one["device"] < 0.4 * total for one in held)
        wait_for(lambda: reader.version == version)  # noqa: B023
        placed = sync(reader.get_variables()[0])
        (wanted,) = alone.get_variables(["policy"])
        assert jax.tree.map(lambda leaf: leaf.sharding, placed) == shardings
        jax.tree.map(
            lambda got, one: np.testing.assert_allclose(got, one, rtol=1e-5, atol=1e-6),
            placed,
            wanted,
        )
    # Of an array that is stored in blocks no device has asked for more than it holds.
    assert read
    assert {whole // got for whole, got in read} == {4}
    files = [read_version(next((tmp_path / str(rank)).glob("version-*2"))) for rank in range(RANKS)]
    sizes = [*map(num_bytes, files)]
    assert sum(sizes) == total  # Each block is laid down once,
    assert max(sizes) < 0.55 * total  # by either in turn where both have it.
    reader.close()
