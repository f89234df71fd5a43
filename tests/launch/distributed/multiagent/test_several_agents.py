"""Environments of several agents in a program of Launchpad's."""

import pytest

from . import runs

pytestmark = [pytest.mark.distributed, pytest.mark.long]


def test_agents_are_streams_of_every_actor(tmp_path):
    pytest.importorskip("launchpad")
    runs.check(runs.train(tmp_path, "--launch", "processes"))
