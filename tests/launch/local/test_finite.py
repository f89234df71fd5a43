"""Numbers that are not finite end a run, and are never saved."""

import dataclasses
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe import environments
from troupe.agents.dqn import DQNBuilder
from troupe.environments import fakes
from troupe.launch.errors import DivergedError, RunError
from troupe.launch.files import frozen
from troupe.launch.files.checkpoints import Store
from troupe.launch.local import components, finite
from troupe.launch.local import run as local
from troupe.launch.logging import monitor


class Careless(fakes.Fake):
    """Its observations are no numbers from the 50th step on."""

    steps = 0

    def step(self, action):
        timestep = super().step(action)
        self.steps += 1
        if self.steps < 50:
            return timestep
        observation = timestep.observation.copy()
        observation[-1] = np.nan
        return timestep._replace(observation=observation)


def test_an_observation_that_is_nan_ends_the_run(tiny, tmp_path):
    def factory(*, seed, num_envs, evaluation):
        spec = environments.make_spec(fakes.discrete(seed=0))
        kind = fakes.Fake if evaluation else Careless
        return environments.Vector([kind(spec, seed=seed + i) for i in range(num_envs)])

    experiment = dataclasses.replace(tiny().experiment(), environment_factory=factory)
    with pytest.raises(RunError, match="environment 0 of 2: Careless: observation holds nan"):
        local.run(experiment, tmp_path)
    checkpoint = Store(tmp_path / "checkpoints").newest(pytest.fail)
    assert checkpoint.counters["actor_steps"] > 80
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(checkpoint.read("replay")["rows"]))


class Diverging(DQNBuilder):
    """Its parameters are no numbers after 20 gradient steps.

    `silent`: its metrics do not say so; `apparent`: they do, and the parameters are as they should
    be.
    """

    silent = apparent = False

    def make_update(self, networks, spec):
        update = super().make_update(networks, spec)

        def step(state, sample):
            state, output = update.step(state, sample)
            bad = jnp.where(state.steps > 20, jnp.nan, 0.0)
            metrics = {"loss": output.metrics["loss"] + bad, "epsilon": bad}
            if not self.apparent:
                state = state._replace(params=jax.tree.map(lambda x: x + bad, state.params))
            return state, output._replace(metrics={} if self.silent else metrics)

        return update._replace(step=step, steps=None)


@pytest.mark.parametrize("silent", [False, True])
def test_what_diverges_ends_the_run_with_the_last_finite_checkpoint(
    tiny, tmp_path, monkeypatch, silent
):
    # The metrics are looked at after every advance, so before the next checkpoint.
    monkeypatch.setattr(monitor, "_STATUS_SECONDS", 0.0)
    recipe = tiny(checkpointing={"every_steps": 50})
    builder = Diverging(recipe.experiment().builder.config)
    builder.silent = silent
    experiment = dataclasses.replace(recipe.experiment(), builder=builder)
    message = r"failed at \d+ actor steps: the learner's \['state'\]\.params\S+ holds nan after"
    with pytest.raises(DivergedError, match=message) as failed:
        local.run(experiment, tmp_path)
    assert ("loss is nan" in str(failed.value)) == (not silent)
    (path,) = Store(tmp_path / "checkpoints").paths()
    assert f"{path} is the last that is finite" in str(failed.value)
    assert not (tmp_path / "result.json").exists()
    assert "nan" in (tmp_path / "logs" / "main.log").read_text()
    with np.load(path / "learner.npz") as arrays:
        names = [name for name in arrays.files if name != "structure"]
        assert all(np.isfinite(arrays[name]).all() for name in names)


def test_a_metric_that_is_no_number_is_told_once_and_ends_nothing(tiny, tmp_path, monkeypatch):
    """A metric called loss or norm ended the run by its name, whatever the state was."""
    monkeypatch.setattr(monitor, "_STATUS_SECONDS", 0.0)
    recipe = tiny(checkpointing={"every_steps": 50})
    builder = Diverging(recipe.experiment().builder.config)
    builder.apparent = True
    experiment = dataclasses.replace(recipe.experiment(), builder=builder)
    assert local.run(experiment, tmp_path).learner_steps > 20
    log = (tmp_path / "logs" / "main.log").read_text()
    assert log.count("warning: the metric loss is nan after") == 1
    assert log.count("warning: the metric epsilon is nan after") == 1


def test_what_a_learner_remarks_is_told_once():
    class Remarking:
        steps, told = 0, []

        def metrics(self):
            self.steps += 1
            return {"loss": float(self.steps)}

        def remarks(self, metrics):
            return {"high": f"loss is {metrics['loss']:g}"} if metrics["loss"] > 1 else {}

    learner = Remarking()
    watched = finite.MetricsWatch(learner, learner.told.append)
    assert [watched()["loss"] for _ in range(3)] == [1.0, 2.0, 3.0]
    assert learner.told == ["warning: loss is 2; this is said once"]


def test_arrays_on_several_devices_and_of_narrow_types_are_looked_at():
    mesh = jax.make_mesh((2,), ("data",))
    spread = jax.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    fine = {"w": jax.device_put(jnp.arange(4.0), spread), "n": np.int32(3), "name": "x"}
    finite.require({**fine, "best": np.float32("inf")}, 7)
    for bad in (
        jax.device_put(jnp.array([0.0, 0.0, 0.0, jnp.nan]), spread),
        jnp.array([jnp.nan], jnp.bfloat16),
        np.array([np.nan]),
    ):
        for nest in ({**fine, "w": bad}, frozen.Freezer().freeze({**fine, "w": bad})):
            with pytest.raises(DivergedError, match=r"\['w'\] holds nan after 7 gradient steps"):
                finite.require(nest, 7)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with two checkpoints, by a factory of recipes."""
    folder = tmp_path_factory.mktemp("run") / "run"

    def make(recipe):
        if not folder.exists():
            local.run(recipe.experiment(), folder, request=recipe.to_json())
        return folder

    return make


@pytest.mark.parametrize(
    ("part", "how", "word"),
    [
        ("replay", "lost", "left out"),
        ("replay", "truncated", "left out"),
        ("actor", "lost", "left out"),
        ("learner", "truncated", "is taken"),
    ],
)
def test_what_can_be_done_without_is_told_and_left_out(tiny, tmp_path, finished, part, how, word):
    """A lost replay made `resume` and `evaluate` refuse, although the learner was whole."""
    recipe = tiny(steps=100, checkpointing={"every_steps": 50})
    shutil.copytree(finished(recipe), tmp_path, dirs_exist_ok=True)
    older, newest = Store(tmp_path / "checkpoints").paths()
    file = newest / f"{part}.npz"
    file.unlink() if how == "lost" else os.truncate(file, 50)
    experiment = dataclasses.replace(recipe.experiment(), num_actor_steps=200)
    said = []
    checkpoint = local.lifecycle.newest(experiment, tmp_path, said.append)
    assert checkpoint.path == (older if part == "learner" else newest)
    assert len(said) == 1
    assert f"{part}.npz" in said[0]
    assert word in said[0]
    with components.make_environment(experiment, 1) as environment:
        made = components.make(experiment, environment)
        local.saver.restore(checkpoint, made, pytest.fail)
        assert made.learner.steps == checkpoint.counters["learner_steps"]
        assert len(made.replay) == 0 if part == "replay" else len(made.replay) > 16
        # Where its state is lost, exploration does not begin anew.
        acted = checkpoint.counters["actor_steps"] // 2
        assert (made.actor.save().num_actions >= acted - 5).all()
