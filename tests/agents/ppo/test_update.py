"""PPO: what annealing comes to, and batches of rollouts that are not one of each environment."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from troupe import environments, launch
from troupe.agents.ppo import PPOBuilder, PPOConfig
from troupe.launch.local import components
from troupe.launch.local.loop import CatchUp, Loop
from troupe.launch.signals import Stop

CONFIG = PPOConfig(hidden_sizes=(8,), num_envs=4, rollout_length=8, num_minibatches=2, num_epochs=2)


class Queued(PPOBuilder):
    """Learns from as many windows as it is told, whichever come first."""

    batch_size = 4

    def make_replay_spec(self, spec):
        return dataclasses.replace(
            super().make_replay_spec(spec), batch_size=self.batch_size, max_size=100
        )


def make_experiment(builder):
    def make(*, seed, num_envs, evaluation):
        return environments.make("fake/match", seed=seed, num_envs=num_envs)

    return launch.Experiment(builder, make, "fake/match", 500, seed=3)


def advance(made, steps):
    between = CatchUp(made.learner.step, made.replay, 1)
    Loop(made.environment, made.actor, between).advance(steps, math.inf, Stop())


def train(builder, steps):
    experiment = make_experiment(builder)
    made = components.make(experiment, components.make_environment(experiment, 0))
    advance(made, steps)
    return made


@pytest.mark.parametrize(("batch_size", "updates"), [(2, 20), (4, 10), (8, 5)])
def test_all_that_was_acted_is_learned_from_once(batch_size, updates):
    builder = Queued(CONFIG)
    builder.batch_size = batch_size
    made = train(builder, 4 * 8 * 10 + 60)  # The first step of an episode takes no action.
    assert made.learner.steps >= updates
    assert made.replay.sampled == made.learner.steps * batch_size
    assert made.replay.inserted - made.replay.sampled < max(batch_size, 4)
    assert all(math.isfinite(value) for value in made.learner.metrics().values())


def test_a_queue_with_one_of_each_environment_is_what_ppo_has():
    one, other = (train(builder(CONFIG), 300) for builder in (PPOBuilder, Queued))
    assert one.learner.steps == other.learner.steps > 5
    for a, b in zip(
        jax.tree.leaves(one.learner.get_variables(["policy"])),
        jax.tree.leaves(other.learner.get_variables(["policy"])),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def leaves_after(steps, **config):
    made = train(PPOBuilder(dataclasses.replace(CONFIG, **config)), steps)
    metrics = made.learner.metrics()
    return jax.tree.leaves(made.learner.get_variables(["policy"])), metrics


def test_passes_are_left_out_once_the_policy_went_too_far():
    """The first finds the policy where it was, the second too far away."""
    config = {"num_minibatches": 1, "learning_rate": 0.1}
    once, _ = leaves_after(50, num_epochs=1, **config)
    stopped, metrics = leaves_after(50, num_epochs=4, target_kl=1e-6, **config)
    assert metrics["left_out"] == 1.0
    for a, b in zip(once, stopped, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


def test_before_the_first_gradient_step_a_memory_unrolled_is_that_which_acted():
    """So the policy that learns is where the one that acted is: no divergence from it."""
    config = {"num_minibatches": 1, "num_epochs": 1, "core": "lstm", "core_size": 8}
    _, metrics = leaves_after(100, **config, hidden_sizes=(4,))
    assert abs(metrics["kl"]) < 1e-6
    assert metrics["entropy"] > 0.1


@pytest.mark.parametrize("course", [{"anneal_steps": 64}, {"learning_rate_steps": 2}])
def test_nothing_is_learned_once_the_rate_is_annealed_away(course):
    made = train(PPOBuilder(dataclasses.replace(CONFIG, **course)), 100)
    before, steps = made.learner.get_variables(["policy"]), made.learner.steps
    assert steps >= 2
    made.replay.reset_adder()
    advance(made, 100)
    assert made.learner.steps > steps
    after = made.learner.get_variables(["policy"])
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(a, b)
