"""Environments of several agents on Ray."""

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'troupe[ray]'")

from ..several_agents import small_run


@pytest.mark.long
def test_agents_are_streams_of_every_actor(tmp_path):
    result = small_run.train(tmp_path, "--launch", "ray")
    small_run.check(result)
    assert result["engine"] == "ray"
