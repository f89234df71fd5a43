"""Our actors run under acme's own loop."""

import importlib.util

import jax
import numpy as np
import pytest

from troupe import environments
from troupe.agents.dqn import DQNBuilder, DQNConfig

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def acme():
    if importlib.util.find_spec("acme") is None:
        pytest.fail("acme is not installed; deselect with -m 'not distributed'.")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Launchpad's imports use what Python 3.10 deprecates.
        import acme
    return acme


def test_an_actor_runs_under_acmes_environment_loop(acme):
    environment = environments.make("CartPole-v1", seed=3)
    spec = environments.make_spec(environment)
    builder = DQNBuilder(DQNConfig(min_replay_size=50, steps_per_dispatch=2, hidden_sizes=(8,)))
    networks = builder.make_networks(spec)
    policy = builder.make_policy(networks, spec)
    replay = builder.make_replay_tables(spec, policy, num_envs=None, seed=0)
    dataset = builder.make_dataset_iterator(replay)
    learner = builder.make_learner(jax.random.key(0), networks, spec, dataset, replay)
    adder = builder.make_adder(replay)
    actor = builder.make_actor(jax.random.key(1), policy, spec, learner, adder)
    loop = acme.EnvironmentLoop(environment, actor, logger=_Quiet())
    results = [loop.run_episode() for _ in range(5)]
    steps = sum(result["episode_length"] for result in results)
    # One transition for every action, whatever the lengths of the episodes.
    assert replay.inserted == steps
    assert all(result["episode_return"] == result["episode_length"] for result in results)
    sample = replay.sample(1)
    assert sample.data.observation.shape == (1, 64, 4)
    assert set(np.unique(sample.data.reward)) == {1.0}


class _Quiet:
    def write(self, values):
        pass

    def close(self):
        pass
