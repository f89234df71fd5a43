"""Stages of a pipeline in processes of their own."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from . import staged

SCRIPT = pathlib.Path(staged.__file__)


def run_ranks(folder, size, mesh="", schedule=""):
    """Runs a gang of one device each until every rank has said what it saw."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = "--xla_force_host_platform_device_count=1"
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, str(SCRIPT), str(rank), str(size), str(port), str(folder)),
                *(mesh, schedule),
            ],
            env={**os.environ, "XLA_FLAGS": flags},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        told = ((line for line in p.stdout if line.startswith("{")) for p in processes)
        return [json.loads(next(lines)) for lines in told]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()


def test_each_process_holds_a_stage_and_one_goes_on_alone(tmp_path):
    gang = run_ranks(tmp_path, 2, "stage=2", "pipeline:stage")
    assert gang[0] == gang[1]
    (after,) = run_ranks(tmp_path, 1)
    alone = staged.make_learner()
    for found in (gang[0], after):
        alone.run(2)
        (policy,) = alone.get_variables(["policy"])
        norms = [float(np.linalg.norm(leaf)) for leaf in jax.tree.leaves(policy)]
        assert found["norms"] == pytest.approx(norms, rel=1e-4)
        assert found["metrics"] == pytest.approx(alone.metrics(), rel=1e-3, abs=1e-5)
        alone._samples = staged.make_learner()._samples
