"""The course of the learning rate, the same in every agent."""

import jax
import numpy as np
import optax
import pytest

from troupe import environments
from troupe.agents import AGENTS, find_builder
from troupe.agents.configs import AdamConfig
from troupe.agents.learning import schedules
from troupe.agents.programs import dispatch
from troupe.agents.replay.shapes import sample_shapes


def rates(counts, **fields):
    schedule = schedules.learning_rate(AdamConfig(learning_rate=2.0, **fields))
    return [float(schedule(count)) for count in counts]


def test_it_is_a_number_unless_it_changes():
    assert schedules.learning_rate(AdamConfig(learning_rate=0.5)) == 0.5
    assert schedules.learning_rate(AdamConfig(learning_rate_schedule="cosine")) == 1e-3


def test_courses():
    counts = [0, 50, 100, 200]
    assert rates(counts, learning_rate_steps=100) == [2.0, 1.0, 0.0, 0.0]
    cosine = rates([0, 25, 50, 100], learning_rate_schedule="cosine", learning_rate_steps=100)
    expected = [1 + np.cos(np.pi * part) for part in (0.0, 0.25, 0.5, 1.0)]
    np.testing.assert_allclose(cosine, expected, atol=1e-6)
    assert rates([0, 5, 10, 99], learning_rate_warmup_steps=10) == [0.0, 1.0, 2.0, 2.0]
    both = rates([0, 5, 10, 60, 110], learning_rate_warmup_steps=10, learning_rate_steps=100)
    np.testing.assert_allclose(both, [0.0, 1.0, 2.0, 1.0, 0.0], atol=1e-6)


def halving(config):
    return optax.exponential_decay(config.learning_rate, 10, 0.5)


def nothing(config):
    return config.learning_rate


def test_a_function_of_ones_own():
    np.testing.assert_allclose(
        rates([0, 10, 20], learning_rate_schedule=f"{__name__}:halving"), [2.0, 1.0, 0.5]
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"learning_rate_schedule": "cosin"}, "one of linear, cosine"),
        ({"learning_rate_schedule": "a:b", "learning_rate_steps": 3}, "leave out"),
        ({"learning_rate_steps": 0}, "learning_rate_steps is 0"),
        ({"learning_rate_schedule": "no.such:thing"}, "can be imported"),
        ({"learning_rate_schedule": f"{__name__}:gone"}, "can be imported"),
        ({"learning_rate_schedule": f"{__name__}:nothing"}, "makes a float"),
    ],
)
def test_what_is_no_course_is_said(fields, words):
    with pytest.raises(ValueError, match=words):
        schedules.learning_rate(AdamConfig(**fields))


@pytest.mark.parametrize("name", ["ppo", "impala"])
def test_actor_steps_or_gradient_steps(name):
    with pytest.raises(ValueError, match="give one"):
        find_builder(name).config_class(anneal_steps=100, learning_rate_steps=10)


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_follows_it(name):
    """Programs of a gradient step are compared: with the course there is more to compute."""
    builder_class = find_builder(name)
    env = "Pendulum-v1" if name in ("cql", "d4pg", "sac", "td3") else "CartPole-v1"
    env = "tokens:reverse" if name == "grpo" else env
    with environments.make(env, seed=0, num_envs=1, actions=builder_class.actions) as environment:
        spec = environments.make_spec(environment)

    def size(**fields):
        builder = builder_class(builder_class.config_class(**fields))
        networks = builder.make_networks(spec)
        extras = builder.make_extras_spec(builder.make_policy(networks, spec))
        samples = sample_shapes(builder.make_replay_spec(spec), spec, extras)
        update = builder.make_update(networks, spec)
        state = jax.eval_shape(update.init, jax.random.key(0))
        return str(jax.make_jaxpr(update.step)(state, dispatch.on_device(samples))).count("\n")

    assert size(learning_rate_warmup_steps=7, learning_rate_steps=1000) > size()
