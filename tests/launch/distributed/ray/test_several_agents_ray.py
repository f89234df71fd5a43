"""Environments of several agents on Ray."""

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'troupe[ray]'")

from .. import several_agents


@pytest.mark.long
def test_agents_are_streams_of_every_actor(tmp_path):
    result = several_agents.train(tmp_path, "--launch", "ray")
    several_agents.check(result)
    assert result["engine"] == "ray"
