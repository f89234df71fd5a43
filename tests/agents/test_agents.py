"""Every agent x what every agent must do. A new agent adds a row to `AGENTS`."""

import math

import jax
import numpy as np
import pytest

from troupe import environments, launch
from troupe.agents import find_builder
from troupe.launch.local import components
from troupe.launch.local.loop import CatchUp, LearningLoop, Loop
from troupe.launch.signals import Stop

from .. import demonstrations

DQN = {
    "hidden_sizes": (32,),
    "min_replay_size": 200,
    "epsilon_decay_steps": 1_000,
    "discount": 0.0,
    "samples_per_insert": 64.0,
}
PPO = {"hidden_sizes": (32,), "rollout_length": 32, "discount": 0.0, "learning_rate": 3e-3}
BC = {"hidden_sizes": (32,), "batch_size": 32, "learning_rate": 3e-3}
AGENTS = {
    "bc": ("bc", BC, "fake/match", {}),
    "bc, continuous": ("bc", BC, "fake/match", {"continuous": True}),
    "dqn": ("dqn", DQN, "fake/match", {}),
    "dqn with everything": (
        "dqn",
        {**DQN, "dueling": True, "priority_exponent": 0.6, "loss": "squared", "num_envs": 3},
        "fake/match",
        {},
    ),
    "ppo": ("ppo", PPO, "fake/match", {}),
    "ppo, continuous": (
        "ppo",
        {**PPO, "normalize_observations": True},
        "fake/match",
        {"continuous": True},
    ),
}
LENGTH = 16  # Of an episode of `fake/match`, and its best return.


def make_experiment(agent, config, env, options, seed=0, steps=6_000):
    builder_class = find_builder(agent)
    builder = builder_class(builder_class.config_class(**config))

    def make(*, seed, num_envs, evaluation):
        return environments.make(
            env, seed=seed, num_envs=num_envs, actions=builder.actions, **options
        )

    budget = {"num_actor_steps": steps}
    if builder.needs_data:
        # A tenth: gradient steps.
        budget = {"data": demonstrations.match(**options), "num_learner_steps": steps // 10}
    evaluation = launch.Evaluation(num_envs=10)
    return launch.Experiment(builder, make, env, seed=seed, evaluation=evaluation, **budget)


def train(experiment):
    """(parts, loop) after the whole budget."""
    made = components.make(experiment, components.make_environment(experiment, 0))
    if made.actor is None:
        loop = LearningLoop(made.learner)
    else:
        between = CatchUp(made.learner.step, made.replay, experiment.builder.steps_per_dispatch)
        loop = Loop(made.environment, made.actor, between)
    loop.advance(experiment.budget, math.inf, Stop())
    return made, loop


@pytest.fixture(params=AGENTS, scope="module")
def row(request):
    return AGENTS[request.param]


def test_learns_what_there_is_to_learn(row):
    experiment = make_experiment(*row)
    made, loop = train(experiment)
    before = made.evaluator.run(0, 20, 0, Stop())
    assert np.mean(before.returns) >= 0.85 * LENGTH
    assert loop.steps >= experiment.budget


def test_a_seed_repeats_and_another_differs(row):
    def parameters(seed):
        made, _ = train(make_experiment(*row, seed=seed, steps=600))
        return jax.tree.leaves(made.learner.get_variables(["policy"]))

    first, again, other = parameters(1), parameters(1), parameters(2)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((np.asarray(a) != np.asarray(b)).any() for a, b in zip(first, other, strict=True))


def test_a_saved_learner_acts_like_the_one_it_was(row):
    experiment = make_experiment(*row, steps=600)
    made, _ = train(experiment)
    restored = components.make(experiment, components.make_environment(experiment, 0))
    restored.learner.restore(made.learner.save())
    assert restored.learner.steps == made.learner.steps > 0
    one, two = (p.evaluator.run(0, 5, 0, Stop()).returns for p in (made, restored))
    assert one == two


@pytest.mark.parametrize("agent", ["dqn", "ppo"])
@pytest.mark.parametrize("env", ["fake/discrete", "fake/ragged", "fake/image"])
def test_observations_of_every_kind(agent, env):
    config = (
        {"min_replay_size": 8, "batch_size": 4, "steps_per_dispatch": 2, "num_envs": 2}
        if agent == "dqn"
        else {"num_envs": 2, "rollout_length": 4, "num_minibatches": 2, "num_epochs": 1}
    )
    options = {"size": 36} if env == "fake/image" else {}
    made, _ = train(make_experiment(agent, config, env, options, steps=24))
    assert made.learner.steps > 0
    assert all(math.isfinite(value) for value in made.learner.metrics().values())


@pytest.mark.parametrize("agent", ["bc", "dqn", "ppo"])
def test_actions_that_it_cannot_drive_are_refused_in_one_line(agent):
    builder_class = find_builder(agent)
    spec = environments.make_spec(environments.make("fake/nested", seed=0))
    with pytest.raises(ValueError, match=rf"{agent} drives one discrete action.*") as refusal:
        builder_class().make_networks(spec)
    assert "\n" not in str(refusal.value)


def test_unknown_agents_are_refused_with_what_there_is():
    with pytest.raises(ValueError, match="Did you mean dqn"):
        find_builder("dqm")
    with pytest.raises(ValueError, match="dqn, ppo"):
        find_builder("sarsa")
    with pytest.raises(ValueError, match="not a subclass"):
        find_builder("troupe.agents.learning.learner:SGDLearner")
