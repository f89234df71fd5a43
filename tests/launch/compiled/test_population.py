"""Runs that are one program: each is what it is alone, and ends alone."""

import dataclasses
import os
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe import environments, launch
from troupe.environments import functional
from troupe.launch.compiled.meeting import Meeting
from troupe.launch.compiled.run import run_population
from troupe.launch.errors import DivergedError, Interrupted, RequestError
from troupe.launch.local.components import make_environment
from troupe.launch.logging.report import Reporter

from .test_compiled import DQN, PPO, assert_same, learned, run


def together(recipes, folder, **options):
    outs = [folder / str(index) for index in range(len(recipes))]
    requests = [dataclasses.replace(one, launch="compiled").to_json() for one in recipes]
    found = run_population(
        [one.experiment() for one in recipes], outs, requests=requests, **options
    )
    return outs, found


def seeded(recipe, *seeds):
    return [dataclasses.replace(recipe, seed=seed) for seed in seeds]


def configured(recipe, name, *values):
    return [dataclasses.replace(recipe, config={**recipe.config, name: value}) for value in values]


def assert_as_alone(recipe, out, result, alone):
    """Compares a run of a population with the same run by itself, in a directory of its own."""
    expected = run(recipe, alone)
    for name in ("actor_steps", "learner_steps", "episodes", "seed", "samples_per_insert"):
        assert getattr(result, name) == getattr(expected, name), name
    mine, other = learned(out), learned(alone)
    assert mine.keys() == other.keys()
    for name in mine:
        np.testing.assert_allclose(mine[name], other[name], rtol=5e-3, atol=5e-4, err_msg=name)
    assert [one["episodes"] for one in result.evaluation] == [3, 3, 5]


def test_each_seed_learns_what_it_learns_alone(tmp_path):
    recipes = seeded(PPO, 3, 7)
    outs, results = together(recipes, tmp_path)
    assert len({result.episodes for result in results}) > 1  # They are not in step.
    assert_as_alone(recipes[1], outs[1], results[1], tmp_path / "alone")


def test_numbers_of_the_config_are_swept(tmp_path):
    recipes = configured(PPO, "learning_rate", 1e-4, 3e-3)
    outs, results = together(recipes, tmp_path)
    assert_as_alone(recipes[1], outs[1], results[1], tmp_path / "alone")
    with pytest.raises(AssertionError):
        assert_same(learned(outs[0]), learned(outs[1]))


def test_one_that_diverges_leaves_the_others(tmp_path):
    """Its 20th step gives a reward that is no number."""
    inner = functional.make("jax:CartPole-v1")
    experiments = [dataclasses.replace(one.experiment(), env="own") for one in seeded(PPO, 0, 1)]
    with make_environment(experiments[1], 0) as environment:
        poison = jax.random.key_data(jax.random.fold_in(environment.keys[0], 20))

    def step(state, action, key):
        state, output = inner.step(state, action, key)
        poisoned = (jax.random.key_data(key) == poison).all()
        return state, output._replace(reward=jnp.where(poisoned, jnp.nan, output.reward))

    def make(*, seed, num_envs, evaluation):
        seeds = [environments.derive_seed(seed, i) for i in range(num_envs)]
        return functional.FunctionalVector(inner._replace(step=step), "own", seeds)

    experiments = [dataclasses.replace(one, environment_factory=make) for one in experiments]
    outs = [tmp_path / "0", tmp_path / "1"]
    result, error = run_population(experiments, outs)
    assert isinstance(error, DivergedError)
    assert result.actor_steps >= 397
    assert not (outs[1] / "result.json").exists()


def test_one_whose_directory_is_taken_leaves_the_others(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "mine").touch()
    _, (first, error, last) = together(seeded(PPO, 0, 1, 2), tmp_path)
    assert isinstance(error, RequestError)
    assert first.actor_steps >= 397
    assert last.actor_steps >= 397


@pytest.mark.long
def test_they_go_on_together_or_alone(tmp_path):
    """Bit for bit what they come to without a break; their learners are due at different times."""
    recipes = seeded(DQN, 3, 0, 7)
    whole, results = together(recipes, tmp_path / "whole")
    assert_as_alone(recipes[2], whole[2], results[2], tmp_path / "alone")
    outs, results = together([dataclasses.replace(one, steps=200) for one in recipes], tmp_path)
    assert all(result.actor_steps < 201 for result in results)
    together(recipes, tmp_path, resume=[True, True, True])
    for one, other in zip(whole, outs, strict=True):
        assert_same(learned(one), learned(other))
    longer = launch.resume(outs[1], steps=600, progress=False)
    assert longer.actor_steps >= 597


class Interrupting(Reporter):
    """Sends this process a signal at the first evaluation."""

    sent = False

    def line(self, text):
        if "evaluation" in text and not self.sent:
            self.sent = True
            os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_ends_all_with_checkpoints(tmp_path):
    recipes = [dataclasses.replace(one, steps=10**9) for one in seeded(PPO, 0, 1)]
    outs, errors = together(recipes, tmp_path, reporters=[Interrupting(), Reporter()])
    assert all(isinstance(error, Interrupted) for error in errors)
    assert all(list((out / "checkpoints").glob("checkpoint-*")) for out in outs)


@pytest.mark.parametrize(
    ("recipes", "words"),
    [
        (configured(DQN, "batch_size", 4, 8), "differ in their batch_size"),
        (configured(DQN, "num_envs", 1, 2), "num_envs is that of a whole program"),
        (configured(DQN, "hidden_sizes", (8,), (4,)), "hidden_sizes is no number"),
        (configured(DQN, "double", True, False), "double is no number"),
        (configured(PPO, "num_minibatches", 1, 2), "decides what the program computes"),
        ([PPO, DQN], "several agents"),
        ([DQN, dataclasses.replace(DQN, steps=500)], "differ in num_actor_steps"),
    ],
    ids=lambda one: one.replace(" ", "-") if isinstance(one, str) else "",
)
def test_what_cannot_be_one_program_is_said(recipes, words, tmp_path):
    try:
        _, found = together(recipes, tmp_path)
    except RequestError as error:
        found = [error]
    for error in found:
        assert isinstance(error, RequestError)
        assert words in str(error)
        assert "--parallel" in str(error)


def test_a_meeting_answers_when_all_have_asked_or_left():
    asked = []

    def answer(questions):
        asked.append(dict(questions))
        if any(one == "bad" for one in questions.values()):
            raise ValueError("bad")
        first = min(questions)
        return {first: questions[first] * 2}

    meeting, found = Meeting(3, answer), {}

    def take_part(index, questions):
        for question in questions:
            try:
                found.setdefault(index, []).append(meeting.ask(index, question))
            except ValueError:
                found.setdefault(index, []).append("raised")
        meeting.leave(index)

    threads = [
        threading.Thread(target=take_part, args=(index, questions))
        for index, questions in enumerate([[1, 2], [3, 4, "bad"], [5]])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {0: [2, 4], 1: [6, 8, "raised"], 2: ["raised"]}
    assert asked[0] == {0: 1, 1: 3, 2: 5}
    assert asked[-1] == {1: "bad", 2: 5}
