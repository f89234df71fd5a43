"""Policies apart from critics: where they begin, and what they can drive."""

import jax
import numpy as np
import pytest
from dm_env import specs

from troupe.agents.networks import core, distributions, policies
from troupe.environments.specs import EnvironmentSpec


def spec_of(actions):
    number = specs.Array((), np.float32)
    return EnvironmentSpec(specs.Array((3,), np.float32), actions, number, number)


BOXED = spec_of(specs.BoundedArray((2, 2), np.float32, -1.0, [1.0, 5.0]))
OBSERVATION = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


def test_actions_begin_near_the_middle_and_stay_within_the_bounds():
    box = core.require_box("td3", BOXED)
    assert box.minimum.shape == box.maximum.shape == (2, 2)
    network = policies.make_deterministic_policy(BOXED, box, (16,))
    params = network.init(jax.random.key(0))
    actions = network.apply(params, OBSERVATION)
    np.testing.assert_allclose(actions, np.broadcast_to([0.0, 2.0], (6, 2, 2)), atol=0.1)
    large = network.apply(jax.tree.map(lambda x: 1e4 * x, params), OBSERVATION)
    for action in np.asarray(large):
        box.validate(action)
    np.testing.assert_allclose(network.apply_one(params, OBSERVATION[2]), actions[2], rtol=1e-5)


def test_a_distribution_begins_near_the_same_everywhere():
    box = core.require_box("sac", BOXED)
    family = distributions.tanh_gaussian(box.minimum, box.maximum)
    network = policies.make_stochastic_policy(BOXED, family, (16,))
    parameters = network.apply(network.init(jax.random.key(0)), OBSERVATION)
    assert parameters.shape == (6, 8)
    np.testing.assert_allclose(parameters, 0.0, atol=0.1)


@pytest.mark.parametrize(
    "actions",
    [
        specs.DiscreteArray(3),
        specs.Array((2,), np.float32),
        specs.BoundedArray((2,), np.int32, 0, 3),
        specs.BoundedArray((2,), np.float32, -1.0, np.inf),
        {"left": specs.BoundedArray((2,), np.float32, -1.0, 1.0)},
    ],
)
def test_what_is_no_box_is_refused_in_one_line(actions):
    with pytest.raises(ValueError, match=r"^td3 drives a box of real numbers .* are .*\.$"):
        core.require_box("td3", spec_of(actions))
