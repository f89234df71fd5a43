"""The actor's role by itself: what it asks of the ledger, its seeds and its schedules."""

import jax

from troupe import environments, launch
from troupe.agents.dqn import DQNBuilder, DQNConfig
from troupe.agents.replay import EmbeddedReplay
from troupe.launch.distributed.roles.actor import ActorRole
from troupe.launch.distributed.roles.ledger import Ledger
from troupe.launch.factory import ComponentFactory


class Near:
    """A replay and a board in this process."""

    def __init__(self, source):
        self.source = source

    def writer(self):
        return EmbeddedReplay

    def reader(self):
        return self.source


class Source:
    version = 0

    def __init__(self, params):
        self._params = params

    def get_variables(self, names=("policy",)):
        return [self._params]


def make_role(ledger, index=0, num_actors=1, seen=None, num_envs=2, actors=None):
    seen = [] if seen is None else seen

    class Builder(DQNBuilder):
        def make_actor(self, *arguments, **options):
            actor = super().make_actor(*arguments, **options)
            (actors if actors is not None else []).append(actor)
            return actor

    builder = Builder(DQNConfig(hidden_sizes=(4,), num_envs=num_envs))

    def make_environment(*, seed, num_envs, evaluation):
        seen.append(seed)
        return environments.make("fake/ragged", seed=seed, num_envs=num_envs)

    experiment = launch.Experiment(builder, make_environment, "fake/ragged", 100)
    with environments.make("fake/ragged", seed=0, num_envs=1) as environment:
        spec = environments.make_spec(environment)

    factory = ComponentFactory(experiment, spec, num_envs * num_actors)
    near = Near(Source(factory.networks.init(jax.random.key(0))))
    return ActorRole(factory, index, ledger, near, near)


def end(ledger):
    """Lets actors that have spent the budget end."""
    order = ledger.next_evaluation("evaluator")
    ledger.finish_evaluation("evaluator", {"index": order["index"]})


class Ending(Ledger):
    """A ledger whose run is over with its budget."""

    def report(self, *arguments):
        phase, granted = super().report(*arguments)
        if phase == "judge":
            end(self)
        return phase, granted


def test_an_actor_spends_the_budget_and_counts_its_episodes():
    ledger = Ending(budget=101, evaluation_period=1000, episodes=1, final_episodes=1, quantum=2)
    ledger.learner({"steps": 0, "drained": True})
    make_role(ledger).run()
    assert 100 <= ledger.actor_steps <= 101
    look = ledger.look()
    assert look["phase"] == "done"
    assert look["episodes"] == len(look["recent"]) > 5
    assert all(1 <= length <= 12 for _, length, *_ in look["recent"])


def test_every_actor_and_every_life_has_environments_of_its_own():
    seeds = []
    ledger = Ending(budget=20, evaluation_period=1000, episodes=1, final_episodes=1, quantum=2)
    ledger.learner({"steps": 0, "drained": True})
    for index in (0, 1, 0):
        make_role(ledger, index, num_actors=2, seen=seeds).run()
    assert len(set(seeds)) == 3


def test_schedules_go_on_where_the_run_is():
    before = {"done": {"actor_steps": 12}}  # Taken by others, or in an earlier incarnation.
    ledger = Ending(
        budget=40, evaluation_period=1000, episodes=1, final_episodes=1, quantum=2, state=before
    )
    ledger.learner({"steps": 0, "drained": True})
    actors = []
    make_role(ledger, num_actors=2, actors=actors).run()
    # Two actors of two environments: each stream took three actions before this one came.
    acted = (ledger.actor_steps - 12) // 2
    assert acted > 0
    assert (actors[0].save().num_actions >= 3 + acted).all()
