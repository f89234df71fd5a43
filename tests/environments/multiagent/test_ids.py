"""PettingZoo's environments by their ids, and those of one's own."""

import pathlib
import sys

import numpy as np
import pytest

from troupe import environments
from troupe.environments import multiagent

SPREAD = "pettingzoo:mpe/simple_spread_v3"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The module `scripted` where it is found as a user's is."""
    source = pathlib.Path(__file__).with_name("scripted.py").read_text()
    (tmp_path / "own_agents.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    return "pettingzoo:own_agents:Scripted"


def test_environments_are_whole(own):
    assert [environments.make(own, seed=0, num_envs=n).num_envs for n in (1, 3, 4)] == [3, 3, 6]
    assert multiagent.num_agents(own, {"lives": {"a": [0, 2, "terminated"]}}) == 1
    assert multiagent.num_agents("CartPole-v1", {}) == 1


@pytest.mark.parametrize(
    ("id", "options", "message"),
    [
        ("", {"num_envs": None}, "has a stream for each agent: give num_envs"),
        ("", {"episodic_life": True}, "takes no episodic_life"),
        ("", {"agent_indicator": "yes"}, "agent_indicator must be one of True, False"),
        ("", {"reward_clip": -1}, "reward_clip must be above 0 or None, got -1"),
        ("", {"speed": 3}, "cannot have speed=3: .*unexpected keyword argument 'speed'"),
        ("pettingzoo:own_agents:other", {}, "own_agents has no function other"),
        ("pettingzoo:no_such:other", {}, "its module cannot be imported: ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(own, id, options, message):
    with pytest.raises(environments.EnvironmentFault, match=message) as found:
        environments.make(id or own, seed=0, **{"num_envs": 3, **options})
    assert "\n" not in str(found.value)


def test_pettingzoo_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    message = r"simple_spread_v3 needs an extra: pip install 'troupe\[pettingzoo\]'"
    with pytest.raises(environments.MissingExtraError, match=message):
        environments.make(SPREAD, seed=0, num_envs=3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mpe/simple_sprad_v3", "near names: .*pettingzoo:mpe/simple_spread_v3"),
        ("mp/simple_spread_v3", "near names: pettingzoo:mpe"),
        ("classic/connect_four_v3", "is an AEC environment, whose agents take turns"),
        ("mpe/simple_tag_v3", "need equal observations: .*--env.pad_observations true"),
    ],
)
def test_ids_of_pettingzoo_that_cannot_be(name, message):
    pytest.importorskip("mpe2")
    with pytest.raises(environments.EnvironmentFault, match=message):
        environments.make(f"pettingzoo:{name}", seed=0, num_envs=3)


def test_simple_spread():
    pytest.importorskip("mpe2")
    with environments.make(SPREAD, seed=0, num_envs=4) as vector:
        assert (vector.num_envs, vector.num_agents) == (6, 3)
        assert vector.observation_spec().shape == (18 + 3,)
        timesteps = [vector.reset(), *(vector.step(np.zeros(6, np.int32)) for _ in range(26))]
        assert timesteps[25].last().all()
        assert (timesteps[25].discount == 1).all()  # Cut short by its clock.
        assert timesteps[26].first().all()
        returns = sum(timestep.reward for timestep in timesteps)
        infos = [vector.episode_info(i) for i in range(6)]
        np.testing.assert_allclose(returns[1], infos[1]["return_agent_1"], rtol=1e-5)
        np.testing.assert_allclose(returns[3:].sum(), infos[5]["team_return"], rtol=1e-5)
    with environments.make(SPREAD, seed=0, num_envs=3, N=5) as vector:
        assert vector.num_agents == 5


def test_kinds_of_agents_are_padded():
    pytest.importorskip("mpe2")
    vector = environments.make(
        "pettingzoo:mpe/simple_tag_v3", seed=0, num_envs=1, pad_observations=True
    )
    assert vector.num_agents == 4
    assert vector.observation_spec().shape == (16 + 4,)
