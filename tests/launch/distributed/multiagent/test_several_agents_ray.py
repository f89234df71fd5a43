"""Environments of several agents on Ray."""

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'troupe[ray]'")

from . import runs


@pytest.mark.long
def test_agents_are_streams_of_every_actor(tmp_path):
    result = runs.train(tmp_path, "--launch", "ray")
    runs.check(result)
    assert result["engine"] == "ray"
