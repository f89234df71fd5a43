"""One builder in every launch: what it overrides is heard by the role that it concerns, or refused.

Each override leaves a file, METHOD@ROLE, in a folder of the run when what it made is used.
"""

import os
import pathlib
import sys

import pytest

from troupe import environments, launch
from troupe.agents import find_builder
from troupe.agents.acting.actor import GenericActor
from troupe.agents.dqn import DQNBuilder, DQNConfig
from troupe.agents.replay import EmbeddedReplay
from troupe.agents.variables.client import VariableClient
from troupe.launch import running
from troupe.launch.distributed.deploy import deploy
from troupe.launch.distributed.roles.inference import RemotePolicy
from troupe.launch.distributed.supervision import role
from troupe.launch.factory import ComponentFactory
from troupe.launch.specification.recipe import Recipe

# By method: the roles that use what it makes; with an inference server the policy is used there.
TABLE = {
    "make_networks": {"learner", "actor", "evaluator"},
    "make_policy": {"actor", "evaluator"},
    "make_replay_spec": {"replay", "learner", "actor"},
    "make_update": {"learner"},
    "make_replay_tables": {"replay", "learner", "actor"},
    "make_extras_spec": {"replay", "learner", "actor"},
    "make_adder": {"actor"},
    "make_dataset_iterator": {"learner"},
    "make_actor": {"actor", "evaluator"},
    "make_learner": {"learner"},
}
FULL = bool(os.environ.get("TROUPE_FULL"))
CONFIG = DQNConfig(
    hidden_sizes=(4,),
    batch_size=4,
    min_replay_size=8,
    max_replay_size=200,
    samples_per_insert=2.0,
    steps_per_dispatch=2,
    num_envs=2,
)


class Heard(DQNBuilder):
    """Overrides some methods, each with what says that it is used."""

    name = "heard"

    def __init__(self, config, folder, methods=tuple(TABLE)):
        super().__init__(config)
        self._folder, self._methods = str(folder), methods

    def _use(self, method):
        path = pathlib.Path(self._folder, f"{method}@{role.current().name or 'main'}")
        if method in self._methods:
            path.touch()

    def _noted(self, method, function):
        def call(*arguments, **options):
            self._use(method)
            return function(*arguments, **options)

        return call

    def make_networks(self, spec):
        networks = super().make_networks(spec)
        return networks._replace(apply=self._noted("make_networks", networks.apply))

    def make_policy(self, networks, spec, **options):
        policy = super().make_policy(networks, spec, **options)
        return policy._replace(select_action=self._noted("make_policy", policy.select_action))

    def make_replay_spec(self, spec):
        self._use("make_replay_spec")
        return super().make_replay_spec(spec)

    def make_update(self, networks, spec):
        update = super().make_update(networks, spec)
        return update._replace(step=self._noted("make_update", update.step), steps=None)

    def make_replay_tables(self, *arguments, **options):
        replay = super().make_replay_tables(*arguments, **options)
        self._use("make_replay_tables")
        return replay

    def make_extras_spec(self, policy):
        self._use("make_extras_spec")
        return super().make_extras_spec(policy)

    def make_adder(self, replay):
        adder = super().make_adder(replay)
        adder.add = self._noted("make_adder", adder.add)
        return adder

    def make_dataset_iterator(self, replay):
        for sample in super().make_dataset_iterator(replay):
            self._use("make_dataset_iterator")
            yield sample

    def make_actor(self, *arguments, **options):
        actor = super().make_actor(*arguments, **options)
        actor.select_action = self._noted("make_actor", actor.select_action)
        return actor

    def make_learner(self, *arguments, **options):
        learner = super().make_learner(*arguments, **options)
        learner.step = self._noted("make_learner", learner.step)
        return learner


def make_environment(*, seed, num_envs, evaluation):
    return environments.make("fake/ragged", seed=seed, num_envs=num_envs)


def experiment(builder, steps=60):
    return launch.Experiment(
        builder,
        make_environment,
        "fake/ragged",
        steps,
        evaluation=launch.Evaluation(every=10**6, final_episodes=1),
    )


def heard(folder):
    """Roles by method."""
    found = {}
    for path in folder.iterdir():
        method, _, name = path.name.partition("@")
        found.setdefault(method, set()).add(name)
    return found


@pytest.mark.parametrize("method", TABLE)
def test_each_override_is_heard_in_one_process(tmp_path, method):
    folder = tmp_path / "heard"
    folder.mkdir()
    launch.run(experiment(Heard(CONFIG, folder, (method,))), tmp_path / "run")
    assert heard(folder) == {method: {"main"}}


@pytest.mark.long
@pytest.mark.distributed
@pytest.mark.parametrize(("kind", "servers"), [("threads", 0), ("processes", 0), ("processes", 1)])
def test_every_override_is_heard_by_its_roles(tmp_path, monkeypatch, kind, servers):
    pytest.importorskip("launchpad")
    pytest.importorskip("reverb")
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setenv("XLA_FLAGS", "")
    folder = tmp_path / "heard"
    folder.mkdir()
    made = experiment(Heard(CONFIG, folder), steps=300)
    program = launch.make_program(made, tmp_path / "run", inference_servers=servers)
    launch.launch(program, kind)
    check_heard(folder, servers)


@pytest.mark.long
@pytest.mark.skipif(not FULL, reason="takes a minute; set TROUPE_FULL=1")
@pytest.mark.parametrize("servers", [0, 1])
def test_every_override_is_heard_by_the_roles_on_ray(tmp_path, monkeypatch, servers):
    ray = pytest.importorskip("ray")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setenv("XLA_FLAGS", "")
    folder = tmp_path / "heard"
    folder.mkdir()
    run = running.runner("ray", {"inference_servers": servers})
    run(experiment(Heard(CONFIG, folder), steps=300), tmp_path / "run", progress=False)
    check_heard(folder, servers)


def check_heard(folder, servers):
    found = heard(folder)
    for method, roles in TABLE.items():
        if servers and method in ("make_networks", "make_policy"):
            roles = (roles - {"actor"}) | {"inference"}
        assert roles <= found[method], f"{method}: {roles - found[method]} did not hear"


class Stubborn(DQNBuilder):
    def make_replay_tables(self, spec, policy, *, make_replay=None, num_envs=None, seed=0):
        return EmbeddedReplay(self.make_replay_spec(spec), spec, num_envs=num_envs)


class Unaware(DQNBuilder):
    def make_replay_tables(self, spec, policy, *, num_envs=None, seed=0):
        return super().make_replay_tables(spec, policy, num_envs=num_envs, seed=seed)


@pytest.mark.parametrize("builder", [Stubborn, Unaware])
def test_a_replay_that_cannot_cross_is_refused(tmp_path, builder):
    launch.run(experiment(builder(CONFIG), steps=20), tmp_path / "one")
    with pytest.raises(launch.RequestError, match="replay of dqn lives in one process") as refusal:
        deploy(experiment(builder(CONFIG)), tmp_path / "run")
    assert "make_replay" in str(refusal.value)
    assert "\n" not in str(refusal.value)


class Possessive(DQNBuilder):
    def make_actor(self, key, policy, spec, variable_source, adder=None, *, num_envs=None):
        client = VariableClient(variable_source)
        return GenericActor(policy, key, client, adder, num_envs=num_envs)


def test_an_actor_that_insists_on_parameters_is_refused_beside_inference_servers():
    environment = make_environment(seed=0, num_envs=2, evaluation=False)
    factory = ComponentFactory(
        experiment(Possessive(CONFIG)), environments.make_spec(environment), 2
    )
    replay = factory.replay(2)
    actor = factory.actor(factory.key("actor"), RemotePolicy(None, "actor/0"), replay, num_envs=2)
    with pytest.raises(launch.RequestError, match="or launch without inference servers"):
        actor.select_action(environment.reset().observation)


@pytest.mark.parametrize(("agent", "actions"), [("dqn", "strict"), ("ppo", "clip")])
def test_the_command_line_treats_actions_as_the_builder_says(monkeypatch, agent, actions):
    seen = []
    monkeypatch.setattr(environments, "make", lambda env, **options: seen.append(options))
    for evaluation in (False, True):
        Recipe(agent, "fake/ragged").make_environment(seed=0, num_envs=1, evaluation=evaluation)
    assert find_builder(agent).actions == actions
    assert [options["actions"] for options in seen] == [actions, actions]
