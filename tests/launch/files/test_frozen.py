"""Copies that learning does not change, and checkpoints that are written beside it."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from troupe.launch.errors import DivergedError
from troupe.launch.files import frozen, npz
from troupe.launch.files.checkpoints import CheckpointError, Store
from troupe.launch.files.frozen import Freezer, Shards, nan_at
from troupe.launch.files.writer import CheckpointWriter


@pytest.fixture(params=["on the host", "on its device"])
def place(request, monkeypatch):
    """Arrays of CPUs are copied and looked at as on the host, and as those of accelerators."""
    if request.param == "on its device":
        monkeypatch.setattr(frozen, "_is_host", lambda device: False)


def donate(nest):
    """Has a program write over the arrays of a nest."""
    overwrite = jax.jit(lambda x: jax.tree.map(lambda y: y * 0 - 1, x), donate_argnums=0)
    return jax.block_until_ready(overwrite(nest))


def test_a_copy_outlives_what_is_donated_and_written_over(place):
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    spread = NamedSharding(mesh, PartitionSpec("data"))
    values = np.arange(64, dtype=np.float32).reshape(8, 8)
    live = {"w": jax.device_put(values, spread), "b": jnp.asarray(values, jnp.bfloat16)}
    nest = {**live, "rows": values.copy(), "key": jax.random.key(3), "n": 7, "name": "x"}
    copy = Freezer().freeze(nest)
    donate(live)
    nest["rows"][:] = -1
    assert isinstance(copy["w"], Shards)
    whole = np.full_like(values, np.nan)
    for place, data in copy["w"].written:
        whole[place] = data
    np.testing.assert_array_equal(whole, values)
    # Of what all devices of a row hold one copy is made.
    assert len(copy["w"].shards) == 4
    np.testing.assert_array_equal(copy["b"], values.astype(jnp.bfloat16))
    np.testing.assert_array_equal(copy["rows"], values)
    assert jax.random.key_data(copy["key"]).tolist() == jax.random.key_data(nest["key"]).tolist()
    assert (copy["n"], copy["name"]) == (7, "x")


def test_memory_is_used_again_and_grows_with_what_is_copied():
    freezer = Freezer()
    first = freezer.freeze([np.arange(10)])[0]
    again = freezer.freeze([np.arange(10) + 1])[0]
    assert np.shares_memory(first, again)
    longer = freezer.freeze([np.arange(15)])[0]
    longest = freezer.freeze([np.arange(19)])[0]
    np.testing.assert_array_equal(longest, np.arange(19))
    assert np.shares_memory(longer, longest)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16, np.complex64])
def test_nan_is_found_wherever_it_is(place, dtype):
    values = np.ones(600_000, dtype)
    assert nan_at({"a": values, "b": jnp.asarray(values), "n": np.arange(3)}) is None
    values[-1] = np.nan
    assert nan_at({"a": np.ones(3), "b": values}) == "['b']"
    assert nan_at([np.arange(3), jnp.asarray(values)]) == "[1]"


class Gate:
    """A nest whose writing waits until it is let through."""

    def __init__(self, monkeypatch):
        self.reached, self.open = threading.Event(), threading.Event()
        write = npz.write

        def gated(file, nest):
            self.reached.set()
            self.open.wait()
            write(file, nest)

        monkeypatch.setattr(npz, "write", gated)


def start(writer, values, check=lambda: None):
    parts = writer.freeze({"learner": {"w": values}})
    writer.start(parts, {"actor_steps": int(values[0])}, {"agent": "a"}, check=check)


def test_the_run_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    gate, store = Gate(monkeypatch), Store(tmp_path)
    writer = CheckpointWriter(store)
    values = np.full(1000, 3.0)
    start(writer, values)
    assert gate.reached.wait(60)
    values[:] = 4.0
    assert writer.busy
    assert writer.take() is None
    assert store.newest(pytest.fail) is None
    gate.open.set()
    written = writer.take(None)
    assert written.counters == {"actor_steps": 3}
    assert writer.take() is None  # It is told once.
    checkpoint = store.newest(pytest.fail)
    assert checkpoint.path == written.path
    np.testing.assert_array_equal(checkpoint.read("learner")["w"], np.full(1000, 3.0))


def test_what_goes_wrong_in_the_thread_is_raised_in_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    writer = CheckpointWriter(Store(tmp_path / "file" / "checkpoints"))
    start(writer, np.zeros(3))
    with pytest.raises(CheckpointError, match="there is none yet"):
        writer.take(None)
    assert writer.take(None) is None


def test_what_must_not_be_kept_is_not_written(tmp_path):
    store = Store(tmp_path / "checkpoints")
    writer = CheckpointWriter(store)

    def refuse():
        raise DivergedError("the learner is lost")

    start(writer, np.zeros(3), refuse)
    with pytest.raises(DivergedError, match="the learner is lost"):
        writer.take(None)
    assert not (tmp_path / "checkpoints").exists()
    start(writer, np.ones(3))
    assert writer.take(None).path.name == "checkpoint-00000001"
