"""Where the newest variables are, on the learner's node and elsewhere."""

import pathlib

import jax
import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'troupe[ray]'")

from troupe.agents.variables.publisher import Publisher
from troupe.agents.variables.server import VariableServer
from troupe.agents.variables.stored import StoredArray
from troupe.launch.distributed.engines.ray import object_board

from ....processes import python
from ....waiting import wait_for


class Asked(VariableServer):
    """Counts who calls."""

    def __init__(self):
        super().__init__()
        self.gets = 0

    def get(self, newer_than, inline=False):
        self.gets += 1
        return super().get(newer_than, inline)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A learner's workspace; Ray's store hands on what is put into it."""
    monkeypatch.setattr(object_board.ray, "put", lambda value: value)
    monkeypatch.setattr(object_board.ray, "get", lambda reference, timeout: reference)
    monkeypatch.setattr(object_board, "_LOOK_SECONDS", 0.0)
    (tmp_path / "variables").mkdir()
    return tmp_path


def publisher_in(folder, server):
    page = object_board.Page(folder / "variables")
    return Publisher(object_board._Shelf(page), object_board._Announcer(server, page), period=0.0)


def offer(publisher, value):
    publisher.offer({"policy": np.full(2, value, np.float32)})
    assert publisher.flush(10)


def test_readers_of_the_learners_node_make_no_call(folder):
    server = Asked()
    here = [object_board._fetching([pathlib.Path("/nowhere"), folder]) for _ in range(2)]
    publisher = publisher_in(folder, server)
    assert all(fetch(server, -1) is None for fetch in here)
    for value in range(3):
        offer(publisher, value)
        for fetch in here:
            version, variables = fetch(server, value - 1)
            assert (version, variables["policy"].tolist()) == (value, [value] * 2)
        assert not publisher.wanted
        assert here[0](server, value) is None  # Whoever asks wants something newer.
        wait_for(lambda: publisher.wanted)
    assert server.gets == 0
    assert server.look() == (2, False)
    publisher.close()


def test_versions_that_only_the_page_has_to_tell_are_announced_now_and_then(folder, monkeypatch):
    """A call for each would cost the learner more than the versions do."""
    monkeypatch.setattr(object_board, "_LOOK_SECONDS", 3600.0)
    server, announced = Asked(), []
    monkeypatch.setattr(server, "announce", lambda *words: announced.append(words) or True)
    here = object_board._fetching([pathlib.Path("/nowhere"), folder])
    publisher = publisher_in(folder, server)
    for value in range(5):
        offer(publisher, value)
        assert here(server, value - 1)[0] == value
    assert announced == [(0, [])]
    publisher.close()


def test_a_version_becomes_an_object_when_it_is_asked_for_from_afar(folder):
    server = Asked()
    afar = object_board._fetching([pathlib.Path("/nowhere")])
    publisher = publisher_in(folder, server)
    offer(publisher, 7)
    assert server.get(-1)[1] == []  # Nobody had asked before.
    wait_for(lambda: afar(server, -1) is not None)  # The same, though no newer one was offered.
    version, variables = afar(server, -1)
    assert (version, variables["policy"].tolist()) == (0, [7, 7])
    offer(publisher, 8)
    assert afar(server, 0)[1]["policy"].tolist() == [8, 8]  # At once, from now on.
    publisher.close()


def test_a_new_server_is_told_and_a_new_learner_numbers_on(folder):
    publisher = publisher_in(folder, VariableServer())
    offer(publisher, 1)
    publisher.close()
    server = VariableServer()
    here, afar = object_board._fetching([folder]), object_board._fetching([])
    again = publisher_in(folder, server)
    wait_for(lambda: server.look()[0] == 0)
    assert here(server, -1)[1]["policy"].tolist() == [1, 1]
    wait_for(lambda: afar(server, -1) is not None)
    offer(again, 2)
    assert here(server, 0)[0] == afar(server, 0)[0] == 1
    again.close()


def test_blocks_of_spread_arrays_are_objects_of_their_own(folder, monkeypatch):
    put = []
    monkeypatch.setattr(object_board.ray, "put", lambda value: put.append(value) or value)
    devices = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("a",))
    values = np.arange(32.0, dtype=np.float32).reshape(8, 4)
    rows = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec("a"))
    server, afar = VariableServer(), object_board._fetching([])
    publisher = publisher_in(folder, server)
    publisher.offer({"policy": [jax.device_put(values, rows), np.ones(3)]})
    assert publisher.flush(10)
    wait_for(lambda: afar(server, -1) is not None)
    found = afar(server, -1)[1]["policy"]
    np.testing.assert_array_equal(found[0].read((slice(1, 3), slice(None))), values[1:3])
    assert [block.nbytes for block in put[:4]] == [values.nbytes // 4] * 4
    assert len(put) == 5  # Those and what holds them together.
    publisher.close()


@pytest.mark.parametrize(("parts", "share"), [(1, 1.0), (2, 0.5), (4, 0.25), (8, 0.25)])
def test_a_reader_fetches_what_its_devices_hold(parts, share, monkeypatch):
    """Of blocks of rows, columns: pieces are quarters of either dimension."""
    monkeypatch.setattr(object_board, "_PIECE_BYTES", 64)
    fetched = []
    monkeypatch.setattr(object_board.ray, "put", lambda value: value)
    monkeypatch.setattr(
        object_board.ray, "get", lambda block, timeout: fetched.append(block.nbytes) or block
    )
    values = np.arange(64.0 * 32).reshape(2, 32, 32)
    blocks = tuple(
        ((slice(0, 2), slice(16 * i, 16 * i + 16), slice(0, 32)), values[:, 16 * i : 16 * i + 16])
        for i in (0, 1)
    )
    stored = object_board._apart({"w": StoredArray(values.shape, values.dtype, blocks)})["w"]
    assert len(stored.blocks) == 32
    np.testing.assert_array_equal(np.asarray(stored), values)
    for part in range(parts):
        fetched.clear()
        size = 32 // parts
        index = (slice(None), slice(None), slice(size * part, size * part + size))
        np.testing.assert_array_equal(stored.read(index), values[index])
        assert sum(fetched) == share * values.nbytes


@pytest.mark.parametrize("shape", [(7, 5), (1, 3), (4099,), ()])
def test_pieces_cover_a_block_once(shape, monkeypatch):
    monkeypatch.setattr(object_board, "_PIECE_BYTES", 8)
    values = np.arange(float(np.prod(shape))).reshape(shape)
    found = np.full(shape, -1.0)
    for place, piece in object_board._pieces(tuple(slice(0, n) for n in shape), values):
        assert (found[place] == -1).all()
        found[place] = piece
    np.testing.assert_array_equal(found, values)


APART = """
    import pathlib, sys, time
    import numpy as np
    import ray

    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)

    def devices(count):
        flags = f"--xla_force_host_platform_device_count={count}"
        return {"runtime_env": {"env_vars": {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}}}

    @ray.remote
    class Variables:
        def __init__(self):
            from troupe.agents.variables.server import VariableServer
            self.server = VariableServer()

        def call(self, name, *arguments):
            return getattr(self.server, name)(*arguments)

    class Proxy:
        def __init__(self, actor):
            self.actor = actor

        def __getattr__(self, name):
            return lambda *arguments: ray.get(self.actor.call.remote(name, *arguments))

    @ray.remote
    class Learner:
        def __init__(self, actor, folder):
            from troupe.agents.variables.publisher import Publisher
            from troupe.launch.distributed.engines.ray import object_board as board
            page = board.Page(pathlib.Path(folder))
            announcer = board._Announcer(Proxy(actor), page)
            self.publisher = Publisher(board._Shelf(page), announcer, period=0.0)

        def publish(self, value):
            import jax
            mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
            spec = jax.sharding.PartitionSpec("data", "model")
            values = np.arange(4096.0).reshape(64, 64) + value
            array = jax.device_put(values, jax.sharding.NamedSharding(mesh, spec))
            self.publisher.offer({"policy": {"w": array}})
            return self.publisher.flush(30)

    @ray.remote
    class Sampler:
        def __init__(self, actor):
            import jax
            from troupe.agents.variables.sync import MeshSync
            from troupe.launch.distributed.engines.ray import object_board as board
            self.server, self.fetch, self.version = Proxy(actor), board._fetching([]), -1
            mesh = jax.sharding.Mesh(np.array(jax.devices()), ("model",))
            spec = jax.sharding.PartitionSpec(None, "model")
            self.sync = MeshSync({"w": jax.sharding.NamedSharding(mesh, spec)})

        def look(self):
            found = self.fetch(self.server, self.version)
            if found is not None:
                self.version, self.stored = found[0], found[1]["policy"]
            return self.version

        def place(self):
            try:
                placed = self.sync(self.stored)["w"]
            except OSError as error:
                return str(error)
            assert [shard.data.shape for shard in placed.addressable_shards] == [(64, 32)] * 2
            return np.asarray(placed)

    variables = Variables.remote()
    learner = Learner.options(**devices(4)).remote(variables, sys.argv[1])
    sampler = Sampler.options(**devices(2)).remote(variables)
    for version in range(3):
        assert ray.get(learner.publish.remote(100 * version))
        while ray.get(sampler.look.remote()) < version:
            time.sleep(0.05)
        found = ray.get(sampler.place.remote())
        np.testing.assert_array_equal(found, np.arange(4096.0).reshape(64, 64) + 100 * version)
    # Named, and not yet fetched, when the learner is killed.
    assert ray.get(learner.publish.remote(300))
    while ray.get(sampler.look.remote()) < 3:
        time.sleep(0.05)
    ray.kill(learner)
    # Blocks can be had until the node has seen that their owner is gone.
    while not isinstance(said := ray.get(sampler.place.remote(), timeout=100), str):
        time.sleep(0.05)
    print(said)
"""


@pytest.mark.long
def test_a_sampler_in_another_process_asks_for_blocks_and_a_lost_learner_is_told(tmp_path):
    said = python(APART, tmp_path, seconds=240).splitlines()[-1]
    assert said == "a block of a version is gone"
