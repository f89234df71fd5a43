"""A run with a learner that has no more than acme's have."""

import dataclasses

import numpy as np
import pytest

from troupe.agents.dqn import DQNBuilder
from troupe.agents.interfaces import ManagedLearner
from troupe.agents.learning.managed import managed
from troupe.launch.files.checkpoints import Store
from troupe.launch.local import run as local


class Bare:
    """The members of `acme.core.Learner` alone, of another learner."""

    def __init__(self, learner):
        self.run, self.step = learner.run, learner.step
        self.get_variables = learner.get_variables
        self.save, self.restore = learner.save, learner.restore


class BareBuilder(DQNBuilder):
    """DQN whose learner says nothing more than acme's."""

    def make_learner(self, *arguments, **options):
        return Bare(super().make_learner(*arguments, **options))


def test_what_a_learner_has_is_left_as_it_is():
    class Whole:
        steps, version, variable_names, saved_shapes = 3, 1, ("policy",), None

        def step(self): ...

        run = get_variables = save = restore = metrics = remarks = live_state = assist = step

    whole = Whole()
    assert managed(whole) is whole
    with pytest.raises(TypeError, match="gave a object without step, get_variables, save, restore"):
        managed(object())


def test_what_it_lacks_is_added():
    taken = []

    class Least:
        def step(self):
            taken.append("step")

        def get_variables(self, names):
            return [{"w": np.ones(2)} for _ in names]

        def save(self):
            return {"n": len(taken)}

        def restore(self, state):
            taken[:] = ["step"] * state["n"]

    learner = managed(Least(), 4)
    assert isinstance(learner, ManagedLearner)
    before = learner.version
    learner.run(3)
    assert (learner.steps, taken, learner.metrics()) == (12, ["step"] * 3, {})
    assert learner.variable_names == ("policy",)
    assert learner.version != before
    learner.assist(["policy"])
    again = managed(Least(), 4)
    again.restore(learner.live_state())
    assert again.steps == 12
    assert again.saved_shapes == learner.save() == {"steps": 12, "state": {"n": 3}}


def test_a_run_saves_and_goes_on_with_such_a_learner(tiny, tmp_path):
    recipe = tiny(steps=100)
    experiment = dataclasses.replace(
        recipe.experiment(), builder=BareBuilder(recipe.experiment().builder.config)
    )
    first = local.run(experiment, tmp_path)
    assert first.learner_steps > 0
    counters = Store(tmp_path / "checkpoints").newest(pytest.fail).counters
    assert counters["learner_steps"] == first.learner_steps
    further = dataclasses.replace(experiment, num_actor_steps=160)
    assert local.run(further, tmp_path, resume=True).learner_steps > first.learner_steps
