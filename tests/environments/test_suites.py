"""dm_control and bsuite: seeds, types, ids. They are extras that Python 3.10 tests."""

import numpy as np
import pytest
import tree

from troupe import environments

pytest.importorskip("dm_control")
pytest.importorskip("bsuite")

IDS = ["dm_control/cartpole-swingup", "bsuite/catch/0", "bsuite/cartpole/0", "bsuite/deep_sea/0"]


def rollout(id, seed, steps=30):
    environment = environments.make(id, seed=seed)
    spec = environment.action_spec()
    timesteps = [environment.step(spec.generate_value()) for _ in range(steps)]
    return environment, timesteps


@pytest.mark.parametrize("id", IDS)
def test_values_fit_the_specs(id):
    environment, timesteps = rollout(id, seed=0)
    spec = environments.make_spec(environment)
    assert timesteps[0].first()
    for timestep in timesteps:
        tree.map_structure(lambda s, v: s.validate(v), spec.observations, timestep.observation)
        if not timestep.first():
            spec.rewards.validate(timestep.reward)
            spec.discounts.validate(timestep.discount)
    dtypes = {leaf.dtype for leaf in tree.flatten(spec.observations)}
    assert np.dtype(np.float64) not in dtypes


@pytest.mark.parametrize("id", IDS[:3])
def test_a_seed_repeats_and_another_does_not(id):
    def flat(seed):
        return [np.asarray(leaf).tobytes() for leaf in tree.flatten(rollout(id, seed)[1])]

    assert flat(2**33) == flat(2**33)
    assert flat(0) != flat(1)


@pytest.mark.parametrize(
    ("id", "near"),
    [
        ("dm_control/cartpole-swinup", "dm_control/cartpole-swingup"),
        ("bsuite/cach/0", "bsuite/catch/0"),
        ("bsuite/catch", "bsuite/catch/"),
    ],
)
def test_an_unknown_id_lists_near_names(id, near):
    with pytest.raises(environments.UnknownEnvironmentError, match=near):
        environments.make(id, seed=0)


def test_options_of_gymnasium_only_are_refused():
    with pytest.raises(environments.InvalidOptionError, match="takes no max_episode_steps"):
        environments.make("bsuite/catch/0", seed=0, max_episode_steps=3)
    with pytest.raises(environments.InvalidOptionError, match="renders no images"):
        environments.make("bsuite/catch/0", seed=0).render_frame()


def test_actions_are_rescaled_and_refused():
    environment = environments.make("dm_control/cartpole-swingup", seed=0, actions="clip")
    environment.reset()
    environment.step(np.float32([7.0]))
    strict = environments.make("dm_control/cartpole-swingup", seed=0)
    strict.reset()
    with pytest.raises(environments.InvalidActionError, match="dm_control/cartpole-swingup"):
        strict.step(np.float32([7.0]))
