"""Data in every batch of an agent that acts."""

import jax
import numpy as np
import pytest

from troupe import environments, launch
from troupe.agents import find_builder
from troupe.launch.errors import RequestError
from troupe.launch.local import components
from troupe.launch.local.loop import CatchUp, Loop
from troupe.launch.signals import Stop

from ... import demonstrations

SHOWN = demonstrations.match(count=5)
CONFIG = {"hidden_sizes": (8,), "batch_size": 10, "min_replay_size": 20, "steps_per_dispatch": 2}


def make(agent, **config):
    """The parts of an experiment, of which nothing is run."""
    builder_class = find_builder(agent)
    builder = builder_class(builder_class.config_class(**{**CONFIG, **config}))

    def make_environment(*, seed, num_envs, evaluation):
        return environments.make("fake/match", seed=seed, num_envs=num_envs)

    data = {"data": SHOWN} if builder.mixes_data else {}
    experiment = launch.Experiment(builder, make_environment, "fake/match", 500, seed=3, **data)
    return components.make(experiment, components.make_environment(experiment, 0))


def advance(parts, steps, learn=None):
    """Acts, and draws what is to be drawn, which is learned from where `learn` says how."""
    between = CatchUp(learn or (lambda: parts.replay.sample(2)), parts.replay, 2)
    Loop(parts.environment, parts.actor, between).advance(steps, np.inf, Stop())
    return parts


def test_a_batch_ends_with_data():
    parts = advance(make("demonstrations+dqn", data_fraction=0.3, priority_exponent=0.5), 60)
    sample = parts.replay.sample(2)
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), parts.replay.sample_shapes(2))
    assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), sample)
    np.testing.assert_array_equal(sample.data.extras["is_data"][0], [0] * 7 + [1] * 3)
    # All that is shown is right: each action is what the observation shows, and is rewarded.
    shown = jax.tree.map(lambda x: x[:, 7:], sample.data)
    np.testing.assert_array_equal(np.argmax(shown.observation, -1), shown.action)
    np.testing.assert_array_equal(shown.reward, 1.0)
    assert not np.all(sample.data.reward[:, :7])
    weights = sample.info.size * sample.info.probabilities
    np.testing.assert_allclose(weights[:, 7:], 1.0, rtol=1e-6)
    parts.replay.update_priorities(sample.info.keys, np.full((2, 10), 2.0))


def test_there_are_as_many_gradient_steps_as_without():
    mixed, plain = (advance(make(agent), 200).replay.sampled for agent in ("sqil+dqn", "dqn"))
    assert 2 * mixed == plain > 0  # Half of each batch is data.


def test_what_is_saved_draws_on():
    parts = advance(make("demonstrations+dqn"), 60)
    saved = jax.tree.map(np.copy, parts.replay.save())
    wanted = parts.replay.sample(2)
    other = make("demonstrations+dqn")
    other.replay.restore(saved)
    jax.tree.map(np.testing.assert_array_equal, other.replay.sample(2), wanted)


@pytest.mark.parametrize("n_step", [1, 3])
def test_sqil_rewards_what_is_shown_and_nothing_else(n_step):
    sample = advance(make("sqil+dqn", n_step=n_step, discount=0.5), 60).replay.sample()
    own, shown = sample.data.reward[:5], sample.data.reward[5:]
    assert not own.any()
    sums = np.cumsum(0.5 ** np.arange(n_step))  # Fewer steps where an episode ends before.
    assert {*shown.tolist()} <= {*sums.tolist()}
    assert sums[-1] in shown


def test_gail_tells_what_was_shown():
    parts = make("gail+dqn", discriminator_learning_rate=1e-2, discount=0.0)
    advance(parts, 300, parts.learner.step)
    assert parts.learner.metrics()["discriminator_accuracy"] > 0.6


def test_what_cannot_be_mixed_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"sqil\+ppo cannot learn from data.*has a replay"):
        _spec_of("sqil+ppo")
    with pytest.raises(ValueError, match=r"gail\+dqn rewards single steps.*n_step 1"):
        _spec_of("gail+dqn", n_step=3)
    with pytest.raises(ValueError, match=r"batch_size is 1; .* at least 2"):
        _spec_of("sqil+dqn", batch_size=1)
    experiment = launch.Experiment(find_builder("sqil+dqn")(), make, "fake/match", 500)
    with pytest.raises(RequestError, match="learns from data; give it some with --data"):
        experiment.require_data()


def _spec_of(agent, **config):
    builder_class = find_builder(agent)
    builder = builder_class(builder_class.config_class(**config))
    environment = environments.make("fake/match", seed=0)
    return builder.make_replay_spec(environments.make_spec(environment))
