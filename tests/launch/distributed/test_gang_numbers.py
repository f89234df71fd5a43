"""A learner of several processes: what it learns, and what becomes of ranks that do not join."""

import contextlib
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from troupe.launch.distributed import addresses

from .hosts import Hosts, allowed

OVER_HOSTS = pytest.mark.skipif(
    not os.environ.get("TROUPE_FULL") or not allowed(),
    reason="set TROUPE_FULL=1, where namespaces are allowed",
)
RANK = pathlib.Path(__file__).with_name("rank.py")


def run_ranks(folder, size, devices=1, hosts=None, **environment):
    """Runs ranks to their ends, each on a host of its own where there are some; their exit codes,
    what they said, and what they found."""
    port = addresses.free_ports(1)[0]
    address = hosts.address(0) if hosts else addresses.LOOPBACK
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, **environment}
    processes = []
    for rank in range(size):
        prefix = hosts.on(rank) if hosts else []
        command = [*prefix, sys.executable, str(RANK), str(rank), str(size), f"{address}:{port}"]
        processes.append(
            subprocess.Popen(
                [*command, str(folder / f"{size}-{rank}.npz")],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        # Rank 0 stays until nobody holds its input, which is asked of it last.
        said = [process.communicate(timeout=240)[0] for process in reversed(processes)][::-1]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    codes = [process.returncode for process in processes]
    files = [folder / f"{size}-{rank}.npz" for rank in range(size)]
    return codes, said, [dict(np.load(file)) if file.exists() else None for file in files]


@pytest.fixture
def hosts(tmp_path, request):
    """Two that the ranks are on; None: both ranks are on this machine."""
    with Hosts(tmp_path, 2) if request.param else contextlib.nullcontext() as made:
        yield made


@pytest.mark.long
@pytest.mark.parametrize("hosts", [False, pytest.param(True, marks=OVER_HOSTS)], indirect=True)
def test_ranks_that_share_batches_learn_what_one_process_learns(tmp_path, hosts):
    codes, said, (alone,) = run_ranks(tmp_path, 1)
    assert codes == [0], said
    codes, said, ranks = run_ranks(tmp_path, 2, devices=2, hosts=hosts)
    assert codes == [0, 0], said
    for name, value in alone.items():
        if name.endswith(("/keys", "/priorities")):  # Each rank has those of its own share.
            assert all(rank[name].shape[-1] == value.shape[-1] // 2 for rank in ranks)
            shared = np.concatenate([rank[name] for rank in ranks], axis=-1)
            np.testing.assert_allclose(shared, value, rtol=1e-5, atol=1e-5)
            continue
        np.testing.assert_array_equal(ranks[0][name], ranks[1][name], err_msg=name)
        np.testing.assert_allclose(ranks[0][name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    assert alone["dqn/steps"] == 8


@pytest.mark.long
def test_ranks_that_did_not_join_do_not_learn_each_for_itself(tmp_path):
    codes, said, found = run_ranks(tmp_path, 2, EARLY="1")
    assert 0 not in codes
    assert found == [None, None]
    assert any(re.search("did not join|before any JAX", words) for words in said)
