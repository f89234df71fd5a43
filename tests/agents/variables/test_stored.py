"""Versions of a learner on a mesh, read block by block in other processes."""

import random
import subprocess
import sys
import textwrap
import time

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from troupe.agents.variables.client import VariableClient
from troupe.agents.variables.reader import VariableReader
from troupe.agents.variables.server import VariableServer
from troupe.agents.variables.stored import StoredArray
from troupe.agents.variables.sync import MeshSync
from troupe.agents.variables.version_board import read_version, write_version

from ...processes import python
from ...waiting import wait_for

VALUES = np.arange(24.0 * 16, dtype=np.float32).reshape(24, 16)


def over(first, last, spec, names=("a",)):
    devices = np.array(jax.devices()[first:last])
    shape = [2] * (len(names) - 1) + [-1]
    return NamedSharding(jax.sharding.Mesh(devices.reshape(shape), names), PartitionSpec(*spec))


@pytest.mark.parametrize("inline", [False, True])
def test_a_spread_array_is_stored_block_by_block(tmp_path, inline):
    array = jax.device_put(VALUES, over(0, 8, ("a", "b"), ("a", "b")))
    twice = jax.device_put(VALUES, over(0, 8, ("a",), ("a", "b")))
    path = write_version(tmp_path, 0, {"policy": {"w": array, "v": twice, "b": np.ones(3)}})
    assert array._npy_value is None  # The host has never had it whole.
    assert path.stat().st_size < 2 * VALUES.nbytes + 2048  # Copies are stored once.
    found = read_version(path.read_bytes() if inline else path)["policy"]
    assert [len(found[name].blocks) for name in "wv"] == [8, 2]
    assert isinstance(found["b"], np.ndarray)
    for name in "wv":
        np.testing.assert_array_equal(np.asarray(found[name]), VALUES)
        assert (found[name].shape, found[name].dtype) == (VALUES.shape, VALUES.dtype)


def test_any_part_can_be_read(tmp_path):
    array = jax.device_put(VALUES, over(0, 8, ("a", "b"), ("a", "b")))
    found = read_version(write_version(tmp_path, 0, {"policy": array}))["policy"]
    rng = random.Random(0)
    for _ in range(50):
        ends = [sorted(rng.sample(range(size + 1), 2)) for size in VALUES.shape]
        part = tuple(slice(*pair) for pair in ends)
        np.testing.assert_array_equal(found.read(part), VALUES[part])
    inside = found.read((slice(0, 12), slice(0, 4)))
    assert inside.base is not None  # It is the file's own memory.
    np.testing.assert_array_equal(found.read(), VALUES)


class Fetched:
    """The values of a block, which counts how often they are asked for."""

    asked = 0

    def __init__(self, values):
        self._values = values

    def __array__(self, dtype=None, copy=None):
        Fetched.asked += 1
        return np.asarray(self._values, dtype)


def test_a_device_asks_for_the_blocks_that_it_needs():
    blocks = tuple(
        ((slice(i, i + 6), slice(0, 16)), Fetched(VALUES[i : i + 6])) for i in range(0, 24, 6)
    )
    stored = StoredArray(VALUES.shape, VALUES.dtype, blocks)
    there = over(0, 2, ("a",))
    upper = stored.read((slice(0, 12), slice(None)))
    assert Fetched.asked == 2
    np.testing.assert_array_equal(upper, VALUES[:12])
    found = MeshSync({"w": there})({"w": stored})["w"]
    assert found.sharding == there
    np.testing.assert_array_equal(np.asarray(found), VALUES)


def test_a_reader_without_a_mesh_has_arrays_whole(tmp_path):
    array = jax.device_put(VALUES, over(0, 4, ("a",)))
    server = VariableServer()
    server.announce(3, str(write_version(tmp_path, 3, {"policy": [array]})))
    reader = VariableReader(server, period=0.01)
    np.testing.assert_array_equal(np.asarray(reader.get_variables()[0][0]), VALUES)
    reader.close()


LEARNER = """
    import pathlib, sys
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from troupe.agents.variables.version_board import FileShelf

    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
    shelf = FileShelf(pathlib.Path(sys.argv[1]))
    specs = {"w": P("data", "model"), "v": P("model"), "b": P()}
    shapes = {"w": (64, 64), "v": (32, 8), "b": (16,)}
    for version in range(10**9):
        arrays = {
            name: jax.device_put(np.full(shapes[name], version, "f4"), NamedSharding(mesh, spec))
            for name, spec in specs.items()
        }
        shelf.put(version, {"policy": arrays})
        print(version, flush=True)
"""

SAMPLER = """
    import pathlib, sys
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from troupe.agents.variables.sync import MeshSync
    from troupe.agents.variables.version_board import read_version

    folder, least = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    mesh = Mesh(np.array(jax.devices()[:2]), ("model",))
    specs = {"w": P(None, "model"), "v": P(), "b": P()}
    sync = MeshSync({name: NamedSharding(mesh, spec) for name, spec in specs.items()})
    seen = set()
    while len(seen) < least:
        path = max(folder.glob("version-*"))
        try:
            stored = read_version(path)["policy"]
        except FileNotFoundError:
            continue
        found = sync(stored)
        values = {float(x) for leaf in found.values() for x in np.unique(np.asarray(leaf))}
        assert values == {float(path.name.split("-")[1])}, values
        assert found["w"].sharding.spec == P(None, "model")
        seen |= values
    print(len(seen))
"""


def test_another_process_reads_whole_versions_and_outlives_the_learner(tmp_path):
    """Never a half of one version and a half of another; a learner that is killed holds up none."""
    learner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LEARNER), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert learner.stdout.readline() == "0\n"
        assert int(python(SAMPLER, tmp_path, 5, seconds=120)) == 5
    finally:
        learner.kill()
        learner.communicate()
    # Whatever it was about to write, the newest that is complete can be read.
    assert int(python(SAMPLER, tmp_path, 1, seconds=120)) == 1


class Lost:
    """A block whose host is gone until it is back."""

    def __init__(self, values):
        self.values, self.is_gone = values, False

    def __array__(self, dtype=None, copy=None):
        if self.is_gone:
            raise OSError("gone")
        return np.asarray(self.values, dtype)


def test_a_reader_holds_what_it_has_while_a_newer_version_cannot_be_had():
    newest, there = [0], over(0, 2, ("a",))
    blocks = [Lost(VALUES[:12]), Lost(VALUES[12:])]

    def fetch(server, newer_than):
        if newest[0] <= newer_than:
            return None
        places = ((slice(0, 12), slice(0, 16)), (slice(12, 24), slice(0, 16)))
        stored = StoredArray(VALUES.shape, VALUES.dtype, tuple(zip(places, blocks, strict=True)))
        return newest[0], {"policy": {"w": stored}}

    reader = VariableReader(VariableServer(), fetch=fetch, period=0.005, on_host=True)
    client = VariableClient(reader)
    assert isinstance(client.params["w"], StoredArray)  # Nobody has said yet where it is used.
    client.place_by(MeshSync({"w": there}))
    blocks[1].is_gone, newest[0] = True, 1
    time.sleep(0.05)
    client.update()
    assert (reader.version, reader.fetched) == (0, 1)
    blocks[1].is_gone = False
    wait_for(lambda: reader.version == 1)
    client.update()
    assert client.params["w"].sharding == there
    np.testing.assert_array_equal(np.asarray(client.params["w"]), VALUES)
    reader.close()


def test_a_client_in_the_learners_process_places_what_it_gets():
    class Source:
        version = 0

        def get_variables(self, names):
            return [{"w": jax.device_put(VALUES + self.version, over(4, 8, ("a",)))} for _ in names]

    source, there = Source(), over(0, 2, ("a",))
    one, two = VariableClient(source), VariableClient(source, ("policy", "critic"))
    one.place_by(MeshSync({"w": there}))
    two.place_by(MeshSync([{"w": there}, {"w": there}]))
    source.version = 1
    for client, params in ((one, [one.params]), (two, two.params)):
        client.update()
        for each in params:
            assert each["w"].sharding == there
            np.testing.assert_array_equal(np.asarray(each["w"]), VALUES + 1)
