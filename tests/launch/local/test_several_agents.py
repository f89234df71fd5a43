"""Runs on environments of several agents: exact counters, and evaluations of each and of all."""

import json
import pathlib

import numpy as np
import pytest

from troupe import environments, launch
from troupe.agents.ppo import PPOBuilder, PPOConfig
from troupe.launch.errors import RequestError
from troupe.launch.evaluation import checkpoint, record
from troupe.launch.specification.recipe import Recipe

SOURCE = pathlib.Path(__file__).parents[2] / "environments/multiagent/scripted.py"
ENV = "pettingzoo:own_agents:Scripted"
RETURNS = {"a": 3.0, "b": 50.0, "c": 45.0}
"""Of an episode, whatever the agents do."""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The module of `ENV`, where it is found as a user's is."""
    (tmp_path / "own_agents.py").write_text(SOURCE.read_text())
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def made(monkeypatch):
    """The vectors that are made."""
    vectors, make = [], environments.make

    def keep(*arguments, **options):
        vectors.append(make(*arguments, **options))
        return vectors[-1]

    monkeypatch.setattr(environments, "make", keep)
    return vectors


def taken(vector):
    """Actions that its environments were given."""
    return sum(len(one) for parallel in vector._parallel for one in parallel.unwrapped.taken)


def test_a_run_counts_the_actions_of_agents_alone(own, made, tiny, tmp_path):
    recipe = tiny(env=ENV, steps=203, config={"num_envs": 6})
    result = launch.run(recipe.experiment(), tmp_path / "run", progress=False)
    # Another step of six could have been one too many.
    assert 203 - 6 < result.actor_steps <= 203
    (training,) = [vector for vector in made if taken(vector) == result.actor_steps]
    assert (training.num_envs, training.num_agents) == (6, 3)
    # Eight actions make an episode of each of the three.
    assert result.episodes == pytest.approx(3 * result.actor_steps / 8, abs=6)
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    trained = [row for row in rows if row["kind"] == "train"][-1]
    for values in (result.evaluation[-1], trained):
        assert values["info/team_return"] == sum(RETURNS.values())
        for agent, total in RETURNS.items():
            assert values[f"info/return_{agent}"] == total
    last = result.evaluation[-1]
    assert (last["episodes"], last["min"], last["max"]) == (4, 3.0, 50.0)
    assert last["mean"] == pytest.approx(98 / 3)


def test_a_run_is_judged_and_recorded(own, tiny, tmp_path):
    recipe = tiny(env=ENV, config={"num_envs": 3})
    launch.run(recipe.experiment(), tmp_path / "run", progress=False, request=recipe.to_json())
    outcome = checkpoint.evaluate(tmp_path / "run", episodes=5)
    assert outcome.summary()["episodes"] == 5
    assert sorted(outcome.returns) == sorted([*RETURNS.values()] * 5)
    assert checkpoint.evaluate(tmp_path / "run", which="best").summary()["episodes"] in (3, 4)
    dataset = record.record(tmp_path / "run", steps=80).dataset
    assert dataset.num_transitions == 80
    seen = dataset.observation[0]
    first = np.asarray(dataset.step_type) == 0
    # a and b begin in step 0, c in step 1: nobody's episode begins with a wait.
    assert {tuple(row) for row in seen[first][:, :2].tolist()} <= {(0, 0), (1, 0), (2, 1)}


def test_streams_are_all_agents_of_an_environment(own, tiny, tmp_path):
    recipe = tiny(env=ENV, config={"num_envs": 7})
    message = r"^--config.num_envs is 7, and .*Scripted has 3 agents, .* a multiple: 6 or 9\.$"
    with pytest.raises(RequestError, match=message):
        launch.run(recipe.experiment(), tmp_path / "run", progress=False)


@pytest.mark.parametrize(("agent", "streams"), [("dqn", 3), ("ppo", 24)])
def test_the_default_counts_environments(own, tiny, agent, streams):
    recipe = tiny(env=ENV, agent=agent)
    config = {} if agent == "ppo" else {"hidden_sizes": "8"}
    recipe = type(recipe)(agent=agent, env=ENV, config=config)
    assert recipe.builder().num_envs == streams
    again = type(recipe).from_json(json.loads(json.dumps(recipe.to_json())))
    assert again.builder().num_envs == streams


class Nearest(PPOBuilder):
    """Keeps the batches that it learns from."""

    def make_learner(self, key, networks, spec, dataset, replay=None, **options):
        def watched():
            for sample in dataset:
                self.batches.append(sample.data)
                yield sample

        self.batches = []
        return super().make_learner(key, networks, spec, watched(), replay, **options)


def test_rollouts_of_agents_hold_no_wait_that_counts(own, tmp_path):
    builder = Nearest(
        PPOConfig(num_envs=3, rollout_length=10, hidden_sizes=(8,), num_minibatches=2)
    )
    experiment = launch.Experiment(
        builder=builder,
        environment_factory=lambda *, seed, num_envs, evaluation: environments.make(
            ENV, seed=seed, num_envs=num_envs
        ),
        env=ENV,
        num_actor_steps=200,
        evaluation=launch.Evaluation(episodes=2, final_episodes=2),
    )
    result = launch.run(experiment, tmp_path / "run", progress=False)
    assert result.learner_steps == len(builder.batches) > 2
    for data in builder.batches:
        counts = data.mask * (data.step_type != 2)
        counts[..., -1] = 0  # What followed the last row is not known yet.
        assert set(data.reward[counts > 0].tolist()) == {1, 2, 11, 12, 13, 14, 22, 23}
        assert (data.reward[counts == 0] == 0).all()
        waits = data.mask == 0
        assert (data.observation[waits] == 0).all()
        # The one-hot says which agent it is in every other row.
        assert (data.observation[~waits][:, 3:].sum(axis=1) == 1).all()


@pytest.mark.long
@pytest.mark.parametrize("agent", ["ppo", "independent+ppo"])
def test_agents_learn_to_do_other_things(documented, tmp_path, agent):
    """The page's runners: without knowing who it is none could go the right way."""
    config = {
        "num_envs": 16,
        "rollout_length": 16,
        "num_minibatches": 4,
        "learning_rate": 3e-3,
        "hidden_sizes": (32,),
    }
    recipe = Recipe(
        agent=agent,
        env="pettingzoo:runners:Runners",
        environment={"max_episode_steps": 40},
        steps=4000,
        config=config,
        evaluation=launch.Evaluation(every=4000, final_episodes=3),
    )
    last = launch.run(recipe.experiment(), tmp_path / "run", progress=False).evaluation[-1]
    # The shortest ways: three steps and five, each but the last at a cost of 0.1.
    assert last["info/return_left"] == pytest.approx(0.8, abs=1e-5)
    assert last["info/return_right"] == pytest.approx(0.6, abs=1e-5)
