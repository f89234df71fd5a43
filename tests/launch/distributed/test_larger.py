"""A learner larger than a device: no device and no process ever holds the whole of its state."""

import collections
import importlib.util
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import jax
import pytest

from troupe.agents.programs.mesh import MeshProgram
from troupe.launch.files.checkpoints import Store

LARGER = pathlib.Path(__file__).with_name("larger.py")
WIDTH = 1536
"""Four matrices of 4 MB, four times: the parameters, the target's, and two moments."""


def load():
    spec = importlib.util.spec_from_file_location("larger", LARGER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def state_bytes(learner):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(learner.saved_shapes))


def live_bytes():
    """Bytes of all arrays that are alive, by device."""
    buffers = {}
    for array in jax.live_arrays():
        for shard in array.addressable_shards:
            buffers[shard.device, shard.data.unsafe_buffer_pointer()] = shard.data.nbytes
    found = collections.Counter()
    for (device, _), size in buffers.items():
        found[device] += size
    return found


FULL = pytest.mark.skipif(
    not os.environ.get("TROUPE_FULL"), reason="shown with both at once; set TROUPE_FULL=1"
)
MESHES = [
    pytest.param("model=8", "megatron:model", marks=FULL),
    pytest.param("data=8", "batch:data,zero3:data", marks=FULL),
    ("data=4,model=2", "batch:data,megatron:model,zero3:data"),
]


@pytest.mark.long
@pytest.mark.parametrize(("mesh", "schedule"), MESHES)
def test_no_device_holds_the_whole_and_what_it_holds_was_planned(
    tmp_path, monkeypatch, mesh, schedule
):
    larger, peaks = load(), []
    before = live_bytes()

    def watch(program, arrays):
        jax.block_until_ready(arrays)
        now = live_bytes()
        peaks.append(max(now[device] - before[device] for device in jax.devices()))
        return arrays

    monkeypatch.setattr(MeshProgram, "_settled", watch)
    learner = larger.make_learner(256, mesh, schedule)
    whole = state_bytes(learner)
    planned = sum(
        value.nbytes
        for value in learner._program.plan.program.inputs
        if value.path.startswith("state")
    )
    for device in jax.devices():
        held = sum(
            shard.data.nbytes
            for leaf in jax.tree.leaves(learner.state)
            for shard in leaf.addressable_shards
            if shard.device == device
        )
        assert held == pytest.approx(planned, rel=0.05)
    learner.run(larger.STEPS // larger.K)
    store = Store(tmp_path)
    store.save({"learner": learner.save()}, {}, {})
    ended = larger.size_of(learner)
    learner.get_variables(["policy"])
    assert len(peaks) >= 12
    # An eighth of the state, its gradients, and what actors asked for: a quarter, on one device.
    assert max(peaks) < 0.6 * whole
    del learner
    for mesh in ("model=4", None):
        peaks.clear()
        learner = larger.make_learner(256, mesh)
        checkpoint = store.newest(pytest.fail)
        learner.restore(checkpoint.read("learner", like=learner.saved_shapes))
        assert larger.size_of(learner) == pytest.approx(ended, rel=1e-5)
        learner.step()
        if mesh is not None:
            assert max(peaks) < 0.6 * whole


def run_ranks(folder, size, devices, width, forever=False):
    """Runs a gang until every rank has said what it saw; they are dead afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "MALLOC_ARENA_MAX": "2"}
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, str(LARGER), str(rank), str(size), str(port), str(folder)),
                *(str(width), str(int(forever))),
            ],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(max(size, 1))
    ]
    try:
        # Newer versions of jax have gloo tell of its peers on the same stream, from several threads
        # at once: such lines may be empty.
        told = ((line for line in p.stdout if line.startswith("{")) for p in processes)
        return [json.loads(next(lines)) for lines in told]
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
        for process in processes:
            process.communicate()


@pytest.mark.long
def test_no_process_holds_the_whole_and_what_was_killed_goes_on_elsewhere(tmp_path):
    whole = 16 * 4 * WIDTH**2
    tiny, large = tmp_path / "tiny", tmp_path / "large"
    tiny.mkdir()
    large.mkdir()
    without = max(found["peak"] for found in run_ranks(tiny, 4, 2, 64))
    # Killed with SIGKILL while they learn and save on.
    first = run_ranks(large, 4, 2, WIDTH, forever=True)
    second = run_ranks(large, 2, 2, WIDTH)
    (third,) = run_ranks(large, 0, 1, WIDTH)
    assert {found["began"] for found in first} == {None}
    assert {found["steps"] for found in first} == {22}
    # Each goes on from what was saved, which is the same for all ranks.
    assert len({found["began"] for found in second}) == 1
    assert third["began"] == pytest.approx(second[0]["ended"], rel=1e-5)
    assert second[0]["steps"] >= 44
    # A quarter of the state, its gradients, and what actors asked for.
    assert max(found["peak"] for found in first) - without < whole
    assert third["peak"] - without > whole  # On one device it is whole: that is what is measured.
