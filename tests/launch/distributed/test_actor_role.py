"""The actor's role by itself: what it asks of the ledger, its seeds, schedules and opponents."""

import functools

import jax
import pytest

from troupe import environments, launch
from troupe.agents.dqn import DQNBuilder, DQNConfig
from troupe.agents.replay import EmbeddedReplay
from troupe.environments.functional import FunctionalVector
from troupe.launch.distributed.roles.actor import ActorRole
from troupe.launch.distributed.roles.ledger import Ledger
from troupe.launch.factory import ComponentFactory

GAME = "jax:pgx/tic_tac_toe"


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


class Moving(Source):
    """Has another version whenever it is asked."""

    def __init__(self, params):
        super().__init__(params)
        self.fetched = [self._params]
        self._version = 0

    @property
    def version(self):
        self._version += 1
        return self._version

    def get_variables(self, names=("policy",)):
        self.fetched.append(jax.tree.map(lambda leaf: leaf + self._version, self._params))
        return self.fetched[-1:]


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


@pytest.mark.parametrize("opponent", ["self", "pool"])
def test_an_actor_plays_against_what_is_published(opponent, monkeypatch):
    pytest.importorskip("pgx")
    options = {"opponent": opponent, "opponent_versions": 3, "opponent_period": 8}
    make_environment = functools.partial(environments.make, GAME, **options)
    builder = DQNBuilder(DQNConfig(hidden_sizes=(4,), num_envs=2))
    experiment = launch.Experiment(
        builder, lambda *, evaluation, **arguments: make_environment(**arguments), GAME, 100
    )
    with make_environment(seed=0, num_envs=1) as environment:
        spec = environments.make_spec(environment)
    factory = ComponentFactory(experiment, spec, 4)  # Of two actors.
    source, chosen = Moving(factory.networks.init(jax.random.key(0))), []
    held = FunctionalVector.opponent

    def choose(vector, params):
        if params:  # There is none before the first.
            (place,) = (i for i, one in enumerate(source.fetched) if one is params)
            chosen.append((place, len(source.fetched) - 1))
        held.fset(vector, params)

    monkeypatch.setattr(FunctionalVector, "opponent", property(held.fget, choose))
    near = Near(source)
    ledger = Ending(budget=60, evaluation_period=1000, episodes=1, final_episodes=1, quantum=2)
    ledger.learner({"steps": 0, "drained": True})
    ActorRole(factory, 0, ledger, near, near).run()
    assert len(chosen) > 10
    older = sorted({place for place, newest in chosen if place != newest})
    if opponent == "self":
        assert not older
    else:
        # Actor and opponent fetch with every step; and two steps of two environments are eight of
        # all, as those of the other actor count.
        assert len(older) > 3
        assert all((place - older[0]) % 4 == 0 for place in older)
