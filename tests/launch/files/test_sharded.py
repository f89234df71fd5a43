"""Nests that lie on several devices, as files: written shard by shard, read onto any devices."""

import os
import pathlib
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from troupe import launch
from troupe.launch.errors import RequestError
from troupe.launch.files.checkpoints import Store

ALL = jax.devices()


def on(shape, names, spec):
    """A sharding over as many of the devices as the mesh holds."""
    devices = np.array(ALL[: int(np.prod(shape))]).reshape(shape)
    return NamedSharding(jax.sharding.Mesh(devices, names), PartitionSpec(*spec))


SHARDINGS = {
    "eight": on((8,), ("data",), ("data",)),
    "four by two": on((4, 2), ("data", "model"), ("model", "data")),
    "copies": on((2, 4), ("data", "model"), ("data",)),
    "everywhere": on((8,), ("data",), ()),
    "two": on((2,), ("data",), (None, "data")),
}


def values():
    return {
        "w": np.arange(16 * 8, dtype=np.float32).reshape(16, 8),
        "b": np.asarray(jnp.arange(64, dtype=jnp.bfloat16).reshape(8, 8)),
        "empty": np.zeros((0, 8), np.int32),
        "mask": (np.arange(64) % 3 == 0).reshape(8, 8),
    }


def spread(sharding):
    return {
        "state": jax.tree.map(lambda x: jax.device_put(x, sharding), values()),
        "count": jax.device_put(np.int32(3), NamedSharding(sharding.mesh, PartitionSpec())),
        "steps": np.int64(7),
        "note": "text",
    }


def like(sharding):
    return jax.tree.map(
        lambda x: (
            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
            if isinstance(x, jax.Array)
            else x
        ),
        spread(sharding),
    )


def save(store, nest):
    return store.save({"learner": nest, "actor": {"n": 1}}, {"actor_steps": 1}, {})


@pytest.mark.parametrize("after", [*SHARDINGS, None])
@pytest.mark.parametrize("before", SHARDINGS)
def test_what_was_written_on_some_devices_is_read_on_others(tmp_path, before, after):
    save(Store(tmp_path), spread(SHARDINGS[before]))
    checkpoint = Store(tmp_path).newest(pytest.fail)
    found = checkpoint.read("learner", None if after is None else like(SHARDINGS[after]))
    assert (found["steps"], found["note"], int(found["count"])) == (7, "text", 3)
    for name, expected in values().items():
        leaf = found["state"][name]
        assert leaf.dtype == expected.dtype
        np.testing.assert_array_equal(np.asarray(leaf), expected)
        if after is not None:
            assert leaf.sharding == SHARDINGS[after]
    assert checkpoint.read("actor") == {"n": 1}


def test_a_checkpoint_of_one_device_is_read_onto_many(tmp_path):
    nest = {**spread(SHARDINGS["two"]), "state": values(), "count": np.int32(3)}
    save(Store(tmp_path), nest)
    assert (tmp_path / "checkpoint-00000001" / "learner.npz").exists()
    found = Store(tmp_path).newest(pytest.fail).read("learner", like(SHARDINGS["four by two"]))
    assert found["state"]["w"].sharding == SHARDINGS["four by two"]
    np.testing.assert_array_equal(np.asarray(found["state"]["w"]), values()["w"])


@pytest.mark.parametrize("kind", ["npz", "shards"])
@pytest.mark.parametrize(
    ("other", "said"),
    [
        (np.zeros((16, 4), np.float32), r"\.state\.w: the file has float32\[16, 8\], not float32"),
        (np.zeros((16, 8), np.int32), r"\.state\.w: the file has float32\[16, 8\], not int32"),
    ],
)
def test_another_shape_or_dtype_is_named_by_its_path(tmp_path, kind, other, said):
    nest = spread(SHARDINGS["eight"])
    if kind == "npz":
        nest = {**nest, "state": values(), "count": np.int32(3)}
    save(Store(tmp_path), nest)
    expected = like(SHARDINGS["eight"])
    sharding = expected["state"]["w"].sharding
    expected["state"]["w"] = jax.ShapeDtypeStruct(other.shape, other.dtype, sharding=sharding)
    with pytest.raises(RequestError, match=said):
        Store(tmp_path).newest(pytest.fail).read("learner", expected)
    del expected["state"]["w"]
    with pytest.raises(RequestError, match="the file has a dict of b, empty, mask, w"):
        Store(tmp_path).newest(pytest.fail).read("learner", expected)


def chunk(path):
    """The largest shard of a checkpoint's learner."""
    files = (file for file in (path / "learner").glob("*/c/**/*") if file.is_file())
    return max(files, key=lambda file: file.stat().st_size)


def flip(file):
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(content)


DAMAGES = {
    "a byte of a shard changed": lambda path: flip(chunk(path)),
    "a shard was cut short": lambda path: os.truncate(chunk(path), 10),
    "a shard is gone": lambda path: chunk(path).unlink(),
    "an array is gone": lambda path: shutil.rmtree(chunk(path).parents[2]),
    "the structure is gone": lambda path: (path / "learner" / "structure.json").unlink(),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_of_a_damaged_one_the_one_before_is_taken(tmp_path, what):
    store = Store(tmp_path)
    first = save(store, spread(SHARDINGS["eight"]))
    DAMAGES[what](save(store, spread(SHARDINGS["copies"])))
    warnings = []
    assert store.newest(warnings.append).path == first
    assert len(warnings) == 1
    assert "is damaged" in warnings[0]


def test_a_shard_that_cannot_be_written_leaves_the_earlier_ones(tmp_path, monkeypatch):
    from troupe.launch.files import checkpoints, sharded

    store = Store(tmp_path)
    first = save(store, spread(SHARDINGS["eight"]))

    def full(folder, nest):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sharded, "write", full)
    with pytest.raises(checkpoints.CheckpointError, match="No space left on device; the earlier"):
        save(store, spread(SHARDINGS["eight"]))
    assert list(tmp_path.iterdir()) == [first]


def test_without_the_library_one_line_says_what_to_install(tmp_path, monkeypatch):
    save(Store(tmp_path), spread(SHARDINGS["eight"]))
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(RequestError, match=r"pip install 'troupe\[sharded\]'"):
        Store(tmp_path).newest(pytest.fail).read("learner")
    with pytest.raises(RequestError, match="tensorstore, which cannot be imported"):
        save(Store(tmp_path), spread(SHARDINGS["eight"]))
    assert [path.name for path in pathlib.Path(tmp_path).iterdir()] == ["checkpoint-00000001"]
    save(Store(tmp_path), {"w": np.ones(3)})  # One device needs nothing.


def test_a_run_that_could_not_save_does_not_begin(tmp_path, tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    experiment = tiny(mesh="data=2", schedule="batch:data").experiment()
    with pytest.raises(RequestError, match=r"pip install 'troupe\[sharded\]'"):
        launch.run(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()
