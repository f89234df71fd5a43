"""Checkpoints are whole or not there."""

import os
import resource
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from troupe.launch.errors import RequestError
from troupe.launch.files.checkpoints import CheckpointError, Store

IDENTITY = {"agent": "a", "env": "e"}


def fail(line):
    raise AssertionError(f"an unexpected warning: {line}")


def save(store, step):
    parts = {"learner": {"w": np.full(1000, step)}, "actor": {"count": step}}
    return store.save(parts, {"actor_steps": step}, IDENTITY)


def test_the_newest_is_read(tmp_path):
    store = Store(tmp_path / "checkpoints")
    assert store.newest(fail) is None
    save(store, 10)
    save(store, 5)  # Written later, so newer.
    checkpoint = store.newest(fail)
    assert checkpoint.counters == {"actor_steps": 5}
    assert checkpoint.identity == IDENTITY
    assert checkpoint.parts == ("learner", "actor")
    np.testing.assert_array_equal(checkpoint.read("learner")["w"], np.full(1000, 5))
    assert checkpoint.read("actor") == {"count": 5}


@pytest.mark.parametrize("keep", [1, 3])
def test_only_the_newest_are_kept(tmp_path, keep):
    store = Store(tmp_path, keep=keep)
    for step in range(5):
        save(store, step)
    assert [path.name for path in store.paths()] == [
        f"checkpoint-{number:08d}" for number in range(6 - keep, 6)
    ]
    assert len(list(tmp_path.iterdir())) == keep


def test_an_earlier_life_saves_nothing_more(tmp_path):
    incarnations = [
        Store(tmp_path, keep=1, incarnation=Store(tmp_path).begin_incarnation()) for _ in range(2)
    ]
    with pytest.raises(
        CheckpointError, match="incarnation 0 of the run has ended: incarnation 1 has taken"
    ):
        save(incarnations[0], 1)
    assert save(incarnations[1], 2).name == "checkpoint-00000001"

    def begin_another(folder):
        assert Store(tmp_path).begin_incarnation() == 2
        return lambda: None

    with pytest.raises(CheckpointError, match="incarnation 1 of the run has ended"):
        incarnations[1].save({"learner": {"w": np.zeros(3)}}, {}, IDENTITY, begin_another)
    assert Store(tmp_path).newest(fail).counters == {"actor_steps": 2}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".incarnation",
        "checkpoint-00000001",
    ]


def test_at_least_one_is_kept(tmp_path):
    with pytest.raises(RequestError, match="0 checkpoints were to be kept"):
        Store(tmp_path, keep=0)


DAMAGES = {
    "a byte of a file changed": lambda path: _flip(path / "learner.npz"),
    "a file was cut short": lambda path: os.truncate(path / "learner.npz", 100),
    "a file is gone": lambda path: (path / "actor.npz").unlink(),
    "the manifest is gone": lambda path: (path / "manifest.json").unlink(),
    "the manifest was cut short": lambda path: os.truncate(path / "manifest.json", 20),
    "the manifest says nothing": lambda path: (path / "manifest.json").write_text("[]"),
}


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_one_is_passed_over_with_a_warning(tmp_path, damage):
    store = Store(tmp_path)
    save(store, 1)
    damage(save(store, 2))
    warnings = []
    assert store.newest(warnings.append).counters == {"actor_steps": 1}
    assert len(warnings) == 1
    assert "checkpoint-00000002 is damaged" in warnings[0]
    # The next one does not take its name.
    assert save(store, 3).name == "checkpoint-00000003"


def test_all_damaged_is_an_error(tmp_path):
    store = Store(tmp_path)
    for step in (1, 2):
        _flip(save(store, step) / "learner.npz")
    with pytest.raises(CheckpointError, match=r"are damaged \(2\), the newest: .*00000002 is"):
        store.newest(fail)


def test_a_checkpoint_of_another_agent_says_so(tmp_path):
    store = Store(tmp_path)
    save(store, 1)
    with pytest.raises(RequestError, match="the learner in it is not that of this agent"):
        store.newest(fail).read("learner", like={"v": 0})


def test_a_full_disk_leaves_the_earlier_one(tmp_path):
    """A limit on the size of files stands in for the full disk: the write fails on its way."""
    store = Store(tmp_path)
    save(store, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="checkpoint-00000001, is intact"):
            save(store, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000001"]
    assert store.newest(fail).counters == {"actor_steps": 1}


def test_a_folder_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="there is none yet"):
        save(Store(tmp_path / "file" / "checkpoints"), 1)


KILLER = """
    import os, random, signal, sys, time
    import numpy as np
    from troupe.launch.files.checkpoints import Store
    from troupe.launch.files.writer import CheckpointWriter

    folder, moments, step, interrupted = sys.argv[1], random.Random(0), 0, 0
    for _ in range(100):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            checkpoints, values = CheckpointWriter(Store(folder)), np.full(200_000, step)
            while True:
                step += 1
                values[:] = step
                parts = checkpoints.freeze({"learner": {"step": step, "w": values}})
                checkpoints.start(parts, {"actor_steps": step}, {}, check=lambda: None)
                values[:] = -1  # Learning goes on.
                checkpoints.take(None)
                os.write(writer, step.to_bytes(8, "little"))
        os.close(writer)
        pipe = os.fdopen(reader, "rb")
        step = int.from_bytes(pipe.read(8), "little")
        end = time.perf_counter() + moments.uniform(0, 0.02)
        while time.perf_counter() < end:
            pass
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        rest = pipe.read()
        announced = int.from_bytes(rest[-8:], "little") if rest else step
        interrupted += any(name.startswith(".") for name in os.listdir(folder))
        checkpoint = Store(folder).newest(sys.exit)
        step = checkpoint.counters["actor_steps"]
        # One more may be complete than was announced.
        assert announced <= step <= announced + 1, (announced, step)
        found = checkpoint.read("learner")
        assert found["step"] == step and (found["w"] == step).all()
    print(interrupted)
"""


def test_a_hundred_kills_while_writing(tmp_path):
    """Killed at any moment, the newest complete checkpoint loads and is the last one announced.

    They are written beside a run that changes what it has saved.
    """
    script = tmp_path / "killer.py"
    script.write_text(textwrap.dedent(KILLER))
    folder = tmp_path / "checkpoints"
    killer = subprocess.run(
        [sys.executable, "-W", "ignore", script, folder],
        check=False,
        capture_output=True,
        text=True,
    )
    assert killer.returncode == 0, killer.stderr
    # Else too few came in the middle of a write to prove anything.
    assert int(killer.stdout) > 20
    save(Store(folder), 1)
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
