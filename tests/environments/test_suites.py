"""dm_control and bsuite: seeds, types, ids."""

import numpy as np
import pytest
import tree

from troupe import environments


def of_dm_control(*values):
    """Parameters that need what the newest Python does not have."""
    return pytest.param(*values, marks=pytest.mark.distributed)


IDS = [
    of_dm_control("dm_control/cartpole-swingup"),
    "bsuite/catch/0",
    "bsuite/cartpole/0",
    "bsuite/deep_sea/0",
]


def make(id, **options):
    pytest.importorskip(id.partition("/")[0])
    return environments.make(id, **options)


def rollout(id, seed, steps=30):
    environment = make(id, seed=seed)
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
        of_dm_control("dm_control/cartpole-swinup", "dm_control/cartpole-swingup"),
        ("bsuite/cach/0", "bsuite/catch/0"),
        ("bsuite/catch", "bsuite/catch/"),
    ],
)
def test_an_unknown_id_lists_near_names(id, near):
    with pytest.raises(environments.UnknownEnvironmentError, match=near):
        make(id, seed=0)


def test_options_of_gymnasium_only_are_refused():
    with pytest.raises(environments.InvalidOptionError, match="takes no max_episode_steps"):
        make("bsuite/catch/0", seed=0, max_episode_steps=3)
    with pytest.raises(environments.InvalidOptionError, match="renders no images"):
        make("bsuite/catch/0", seed=0).render_frame()


@pytest.mark.distributed
def test_actions_are_rescaled_and_refused():
    environment = make("dm_control/cartpole-swingup", seed=0, actions="clip")
    environment.reset()
    environment.step(np.float32([7.0]))
    strict = make("dm_control/cartpole-swingup", seed=0)
    strict.reset()
    with pytest.raises(environments.InvalidActionError, match="dm_control/cartpole-swingup"):
        strict.step(np.float32([7.0]))
