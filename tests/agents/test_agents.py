"""Every agent x what every agent must do. A new agent adds a row to `AGENTS`.

What it must do stands in `launch.checking`, which `troupe check` runs too.
"""

import contextlib

import numpy as np
import pytest

from troupe import environments, launch
from troupe.agents import find_builder
from troupe.launch.checking import conformance
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
SAC = {
    "hidden_sizes": (32,),
    "min_replay_size": 200,
    "discount": 0.0,
    "batch_size": 64,
    "samples_per_insert": 32.0,
    "learning_rate": 3e-3,
}
C51 = {**DQN, "min_return": 0.0, "max_return": 2.0, "num_atoms": 11}
TD3 = {**SAC, "exploration_std": 0.3}
AGENTS = {
    "bc": ("bc", BC, "fake/match", {}),
    "bc, continuous": ("bc", BC, "fake/match", {"continuous": True}),
    "c51": ("c51", C51, "fake/match", {}),
    "c51 of the docs": ("c51:C51Builder", {**DQN, "max_return": 2.0}, "fake/match", {}),
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
    "qrdqn, munchausen": (
        "qrdqn",
        {**DQN, "num_atoms": 8, "munchausen_scale": 0.9},
        "fake/match",
        {},
    ),
    "rainbow": (
        "rainbow",
        {k: v for k, v in C51.items() if "epsilon" not in k} | {"n_step": 1},
        "fake/match",
        {},
    ),
    "sac": ("sac", SAC, "fake/match", {"continuous": True}),
    "td3": ("td3", TD3, "fake/match", {"continuous": True}),
    "td3 of the docs": ("td3:TD3Builder", TD3, "fake/match", {"continuous": True}),
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


@pytest.fixture(params=AGENTS, scope="module")
def row(request, documented):
    return AGENTS[request.param]


@pytest.fixture(params=[name for name in AGENTS if "docs" not in name], scope="module")
def runs(request):
    """Three short runs; the last is of another seed."""
    row = AGENTS[request.param]
    made = [conformance.ShortRun(make_experiment(*row, seed=s, steps=600)) for s in (1, 1, 2)]
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(one).run() for one in made]


def test_learns_what_there_is_to_learn(row):
    experiment = make_experiment(*row)
    with conformance.ShortRun(experiment) as short:
        short.run()
        outcome = short.parts.evaluator.run(0, 20, 0, Stop())
        assert np.mean(outcome.returns) >= 0.85 * LENGTH
        assert short.loop.steps >= experiment.budget


def test_a_seed_repeats_and_another_differs(runs):
    conformance.check_seeds(*(one.policy() for one in runs))


def test_a_saved_learner_acts_like_the_one_it_was(runs):
    assert runs[0].parts.learner.steps > 0
    conformance.check_restored(runs[0], runs[2])


def test_metrics_and_parameters_are_finite_and_a_step_is_pure(runs):
    conformance.check_finite(runs[0].parts.learner)
    conformance.check_same_step(runs[0])


@pytest.mark.parametrize("agent", ["dqn", "ppo"])
@pytest.mark.parametrize("env", ["fake/discrete", "fake/ragged", "fake/image"])
def test_observations_of_every_kind(agent, env):
    config = (
        {"min_replay_size": 8, "batch_size": 4, "steps_per_dispatch": 2, "num_envs": 2}
        if agent == "dqn"
        else {"num_envs": 2, "rollout_length": 4, "num_minibatches": 2, "num_epochs": 1}
    )
    options = {"size": 36} if env == "fake/image" else {}
    with conformance.ShortRun(make_experiment(agent, config, env, options, steps=24)) as short:
        assert short.run().parts.learner.steps > 0
        conformance.check_finite(short.parts.learner)


@pytest.mark.parametrize("agent", ["bc", "dqn", "ppo", "rainbow"])
def test_actions_that_it_cannot_drive_are_refused_in_one_line(agent):
    builder_class = find_builder(agent)
    spec = environments.make_spec(environments.make("fake/nested", seed=0))
    with pytest.raises(ValueError, match=rf"{agent} drives one discrete action.*") as refusal:
        builder_class().make_networks(spec)
    assert "\n" not in str(refusal.value)


def test_unknown_agents_are_refused_with_what_there_is():
    with pytest.raises(ValueError, match="Did you mean dqn"):
        find_builder("dqm")
    with pytest.raises(ValueError, match="dqn, ppo, qrdqn"):
        find_builder("sarsa")
    with pytest.raises(ValueError, match="not a subclass"):
        find_builder("troupe.agents.learning.learner:SGDLearner")
