"""Every row of the table of agents x what every agent must do.

Part of it stands in `launch.conformance`, which `troupe check` runs too.
"""

import contextlib
import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe import environments
from troupe import partitioning as pt
from troupe.agents import SGDLearner, catalogue, find_builder
from troupe.agents.acting.policies import RecurrentExtras, batch
from troupe.agents.programs import dispatch
from troupe.agents.programs.placement import Partition
from troupe.agents.snapshots import from_host, to_host
from troupe.launch.conformance import short_run
from troupe.launch.signals import Stop

from ..results import (
    assert_equal_in_norm,
    assert_equal_results,
    assert_same_bits,
    distances,
    nudged,
    raw,
)
from .rows import AGENTS, CASES, CHECKED, FULL, PARTITIONED, TO_LEARN

STREAMS, STEPS = 3, 20  # Of acting side by side.
TOLERANCE = 1e-5  # Of the norm of each array, between one device and eight.
# A mean over a batch of terms near 1 has their rounding, 1e-7, however little is left of it: what
# normalised advantages of both signs leave of a bias' gradient, for one.
LEAST = 1e-2
LEAST_SPLIT = 0.95  # Of the floating point operations of an update.
MESH, SCHEDULES = pt.Mesh({"data": 8}), ("batch:data", "batch:data,zero3:data")
FEW = 8  # Gradient steps, where it does not matter how many.
FUSED = 8  # Gradient steps of one dispatch.
WHOLE_TOLERANCE = 3 * TOLERANCE  # Rounding adds up over the steps of several updates of PPO.
NUDGES = 8  # Of the start by a rounding. What they lead to is allowed where TROUPE_FULL=1 is set.
LAYOUTS = (
    ("data=8", "batch:data,zero3:data"),
    ("data=2,model=4", "batch:data,megatron:model"),
    ("replica=2,data=2,model=2", "batch:replica,batch:data,megatron:model,zero3:data"),
    ("data=4,model=2", "batch:data,megatron:model,zero3:data"),
    ("data=8", "batch:data"),
)


class Tried:
    """A case in short runs. All checks share its parts, so that each program is compiled once."""

    def __init__(self, case, stack):
        self.case, self.row, self.kind, self._stack = case, case.row, case.kind, stack

    def make(self, seed):
        run = short_run.ShortRun(self.case.experiment(seed), most_seconds=np.inf)
        return self._stack.enter_context(run)

    @functools.cached_property
    def trial(self):
        return self.make(1)

    def again(self):
        """A short run, which is the same every time."""
        return self.trial.rewind().run(FEW)

    @functools.cached_property
    def other(self):
        """What a short run of another seed comes to, and the run."""
        run = self.make(2).run(FEW)
        return run.policy(), run

    @functools.cached_property
    def networks(self):
        return self.trial.experiment.make_networks(self.trial.parts.spec)

    @functools.cached_property
    def update(self):
        return self.trial.experiment.builder.make_update(self.networks, self.trial.parts.spec)

    @functools.cached_property
    def gradient_step(self):
        """The update, or where a step of it is several gradient steps one of which it is one: a
        hundred of PPO's lead anywhere from where a rounding more leads."""
        builder = self.case.builder()
        several = ("num_epochs", "num_minibatches")
        once = {name: 1 for name in several if hasattr(builder.config, name)}
        if not once:
            return self.update
        builder = type(builder)(dataclasses.replace(builder.config, **once))
        return builder.make_update(self.networks, self.trial.parts.spec)

    def policy(self, **options):
        builder, spec = self.trial.experiment.builder, self.trial.parts.spec
        return builder.make_policy(self.networks, spec, **options)

    def actor(self, core, num_envs):
        parts, builder = self.trial.parts, self.trial.experiment.builder
        key = jax.random.key(0)
        return builder.make_actor(key, core, parts.spec, parts.learner, num_envs=num_envs)

    def played(self, actor):
        """What an actor of some streams saw and did: time steps, and actions between them."""
        make = self.trial.experiment.make_environment
        with make(seed=5, num_envs=STREAMS, evaluation=True) as environment:
            seen, acted = [environment.reset()], []
            actor.observe_first(seen[0])
            for _ in range(STEPS):
                acted.append(actor.select_action(seen[-1].observation))
                seen.append(environment.step(acted[-1]))
                actor.observe(acted[-1], seen[-1])
        return seen, acted

    @functools.cached_property
    def arguments(self):
        """State and batch of a gradient step in the midst of learning."""
        run = self.again()
        shapes = jax.eval_shape(self.update.init, jax.random.key(0))
        state = from_host(jax.tree.map(np.asarray, run.parts.learner.save()["state"]), shapes)
        sample = dispatch.without_keys(run.newest)
        return state, jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[0]), sample)

    @functools.cached_property
    def several(self):
        """Batches of one dispatch, all different."""
        sample = dispatch.without_keys(self.again().newest)

        def batches(leaf):
            leaf = np.asarray(leaf)
            return np.stack([np.roll(leaf[i % len(leaf)], i, 0) for i in range(FUSED)])

        return jax.tree.map(batches, sample)

    @functools.cached_property
    def two_steps(self):
        """What two gradient steps give on one device."""
        return twice(jax.jit(self.update.step), *self.arguments)

    @functools.cached_property
    def spread(self):
        """The largest distances from them after a rounding of the state, for each array."""
        (state, sample), step = self.arguments, jax.jit(self.update.step)
        starts = (nudged(state, seed) for seed in range(NUDGES))
        return distances((twice(step, start, sample) for start in starts), self.two_steps)


def twice(step, state, sample):
    """Two gradient steps, so that the state of the second is as the first left it."""
    first = step(state, sample)
    return jax.device_get((raw(first), raw(step(first[0], sample))))


@pytest.fixture(params=CASES, scope="module")
def tried(request, documented):
    case = CASES[request.param]
    quick = jax.config.read("jax_disable_most_optimizations")
    with contextlib.ExitStack() as stack:
        # Convolutions take a hundred times as long without.
        jax.config.update("jax_disable_most_optimizations", quick and case.kind.env != "fake/image")
        stack.callback(jax.config.update, "jax_disable_most_optimizations", quick)
        yield Tried(case, stack)


checked = pytest.mark.parametrize("tried", CHECKED, indirect=True, scope="module")
# Fused steps, save and restore are of one learner for all agents.
FUSING = {*CHECKED[2::3]}
in_turn = pytest.mark.skipif(not FULL, reason="every third agent; set TROUPE_FULL=1")
every_third = [pytest.param(name, marks=[in_turn] * (name not in FUSING)) for name in CHECKED]
shown = pytest.mark.skipif(
    not FULL, reason="in semantics/test_semantics.py or of fused steps; set TROUPE_FULL=1"
)
divided = [pytest.param(name, marks=[shown] * (name in PARTITIONED | FUSING)) for name in CHECKED]
smoking = [pytest.param(name, marks=[pytest.mark.smoke] * (name in CHECKED)) for name in CASES]


def test_it_acts_as_its_environment_asks(tried):
    short_run.check_actions(tried.trial)


@pytest.mark.parametrize("tried", smoking, indirect=True, scope="module")
def test_it_learns_and_all_stays_finite(tried):
    short_run.check_learns(tried.trial.rewind(), tried.kind.steps)
    assert tried.trial.parts.learner.steps >= tried.kind.steps
    short_run.check_same_step(tried.trial)


@checked
def test_a_seed_repeats_and_another_differs(tried):
    first, second = tried.again().policy(), tried.again().policy()
    short_run.check_seeds(first, second, tried.other[0])


@checked
def test_what_is_saved_is_restored_bit_by_bit(tried):
    ours, theirs = tried.again(), tried.other[1]
    saved = ours.parts.learner.save()
    theirs.parts.learner.restore(saved)
    assert_same_bits(theirs.parts.learner.save(), saved)
    assert_same_bits(theirs.policy(), ours.policy())
    assert theirs.parts.learner.steps == ours.parts.learner.steps


@checked
def test_evaluations_are_greedy(tried):
    """No draw decides: a player with another key does the same."""
    core = tried.policy(evaluation=True)
    player = tried.actor(core, STREAMS)
    seen, acted = tried.played(player)
    player.restore(to_host(jax.vmap(core.init)(jax.random.split(jax.random.key(1), STREAMS))))
    player.observe_first(seen[0])
    for before, action, after in zip(seen, acted, seen[1:], strict=False):
        assert_same_bits(player.select_action(before.observation), action)
        player.observe(action, after)


@checked
def test_streams_act_together_as_each_alone(tried):
    core = tried.policy(num_streams=STREAMS)
    together, alone = tried.actor(core, STREAMS), tried.actor(core, 1)
    start = together.save()
    seen, acted = tried.played(together)
    for i in range(STREAMS):
        mine = functools.partial(jax.tree.map, lambda x, i=i: np.asarray(x)[i : i + 1])
        alone.restore(mine(start))
        alone.observe_first(mine(seen[0]))
        for before, action, after in zip(seen, map(mine, acted), seen[1:], strict=False):
            got = alone.select_action(mine(before).observation)
            assert_equal_results(got, action, TOLERANCE, least=1.0)  # Bounds are near one.
            alone.observe(action, mine(after))
        assert_equal_results(alone.save(), mine(together.save()), TOLERANCE)


def floats(nest):
    """The memory in the state of a greedy policy: keys and counts are integers."""
    return [x for x in jax.tree.leaves(nest) if jnp.issubdtype(x.dtype, jnp.floating)]


@checked
def test_a_memory_begins_anew_with_every_episode(tried):
    core = tried.policy(evaluation=True)
    assert (core.reset is not None) == tried.row.recurrent
    if tried.row.recurrent:
        check_that_acting_forgets(tried, core)
        check_that_learning_forgets(tried)


def check_that_acting_forgets(tried, core):
    params = tried.trial.parts.learner.get_variables(["policy"])[0]
    step = jax.jit(batch(core))
    observation = tried.played(tried.actor(core, STREAMS))[0][0].observation
    fresh = jax.vmap(core.init)(jax.random.split(jax.random.key(0), STREAMS))
    never, always = np.zeros(STREAMS, bool), np.ones(STREAMS, bool)
    used = step(params, observation, fresh, never)[2]
    wanted, going_on, anew = (
        floats(step(params, observation, state, first)[2])
        for state, first in ((fresh, never), (used, never), (used, always))
    )
    assert_equal_results(anew, wanted, TOLERANCE)
    assert any(np.any(a != b) for a, b in zip(going_on, wanted, strict=True))


def check_that_learning_forgets(tried):
    """What a memory held before the first row of an episode makes no difference."""
    state, sample = tried.arguments
    step = jax.jit(tried.update.step)

    def is_memory(x):
        return isinstance(x, RecurrentExtras)

    def spoiled(x):
        return x._replace(memory=jax.tree.map(lambda m: m + 1.0, x.memory)) if is_memory(x) else x

    def learned(kind, extras):
        data = sample.data
        data = data._replace(step_type=data.step_type.at[:, 0].set(kind), extras=extras)
        return jax.device_get(raw(step(state, sample._replace(data=data))))

    kept = sample.data.extras
    assert any(map(is_memory, jax.tree.leaves(kept, is_leaf=is_memory)))
    wrong = jax.tree.map(spoiled, kept, is_leaf=is_memory)
    first, middle = 0, 1
    assert_same_bits(learned(first, wrong), learned(first, kept))
    results = learned(middle, wrong), learned(middle, kept)
    assert any(jax.tree.leaves(jax.tree.map(lambda a, b: np.any(a != b), *results)))


@pytest.mark.long
@checked
def test_eight_devices_split_the_work(tried):
    """With networks as large as by default: in tiny ones Adam and the like weigh too much."""
    builder, spec = tried.case.builder(tiny=False), tried.trial.parts.spec
    networks = builder.make_networks(spec)
    update = builder.make_update(networks, spec)
    policy = builder.make_policy(networks, spec)
    replay = builder.make_replay_tables(spec, policy, num_envs=builder.num_envs)
    state = jax.eval_shape(update.init, jax.random.key(0))
    step = pt.partition(lambda *args: update.step(*args), MESH, pt.parse_schedule(SCHEDULES[-1]))
    plan = step.plan(state, dispatch.on_device(replay.sample_shapes()))
    assert plan.steps[-1].split["data"] >= LEAST_SPLIT


@pytest.mark.long
@pytest.mark.parametrize("tried", divided, indirect=True, scope="module")
@pytest.mark.parametrize("schedule", SCHEDULES if FULL else SCHEDULES[-1:])
def test_eight_devices_learn_what_one_does(tried, schedule):
    update = tried.update
    step = pt.partition(lambda *args: update.step(*args), MESH, pt.parse_schedule(schedule))
    state, sample = tried.arguments
    found, wanted = twice(step, state, sample), tried.two_steps
    assert_equal_results(found[0], wanted[0], TOLERANCE, LEAST)
    # One of PPO is many of Adam, whose clipped ratios jump: in two a rounding may lead far.
    assert_equal_results(found, wanted, TOLERANCE, LEAST, FULL and (lambda: tried.spread))


def layouts(name):
    """Pairs of a layout that a case begins on and one that it goes on with, by their numbers."""
    number, count = CHECKED.index(name) if name in CHECKED else 0, len(LAYOUTS)
    return [((number + i) % count, (number + i + 1) % count) for i in range(count if FULL else 1)]


def fused(tried, update, name):
    """Yields the states that fused steps of the update lead to on each layout and, restored, on the
    next; what one device comes to; and a function of its spread."""
    samples = tried.several
    saved = to_host(tried.again().parts.learner.save())

    def learner(layout=None):
        """One that goes on from what was saved."""
        partition = None
        if layout is not None:
            mesh, schedule = LAYOUTS[layout]
            partition = Partition(pt.parse_mesh(mesh), pt.parse_schedule(schedule))
        feed = itertools.repeat(samples)
        key = jax.random.key(0)
        made = SGDLearner(update, feed, key, steps_per_dispatch=FUSED, partition=partition)
        made.restore(saved)
        return made

    def state(learner):
        return to_host(raw(learner.save()["state"]))

    def stepped(start):
        alone.restore(start)
        alone.step()
        return state(alone)

    def expected(start):
        """The state that one device comes to, and a function of its spread."""
        wanted = stepped(start)
        starts = ({**start, "state": nudged(start["state"], seed)} for seed in range(NUDGES))
        return wanted, functools.cache(lambda: distances(map(stepped, starts), wanted))

    alone = learner()
    wanted, spread = expected(saved)
    for before, after in layouts(name):
        first, second = learner(before), learner(after)
        first.step()
        yield state(first), wanted, spread
        start = to_host(first.save())
        second.restore(start)
        assert_same_bits(state(second), state(first))
        second.step()
        yield state(second), *expected(start)


@pytest.mark.long
@pytest.mark.parametrize("tried", every_third, indirect=True, scope="module")
def test_fused_steps_on_one_mesh_and_then_on_another_are_those_of_one_device(tried, request):
    """Of gradient steps each array, and where roundings are allowed the state as one vector still.
    Whole updates of PPO, of many gradient steps each, by a bound of their own."""
    name = request.node.callspec.params["tried"]
    for found, wanted, spread in fused(tried, tried.gradient_step, name):
        assert_equal_in_norm(found, wanted, TOLERANCE)
        assert_equal_results(found, wanted, TOLERANCE, LEAST, FULL and spread)
    if tried.gradient_step is not tried.update:
        for found, wanted, spread in fused(tried, tried.update, name):
            assert_equal_results(found, wanted, WHOLE_TOLERANCE, LEAST, FULL and spread)


@pytest.mark.parametrize("tried", TO_LEARN, indirect=True, scope="module")
def test_it_learns_what_there_is_to_learn(tried):
    """Within 6,000 steps; most have learned it long before."""
    run, mean = tried.trial.rewind(), -np.inf
    for steps in (1_500, 3_000, 6_000):
        run.loop.advance(steps // 10 if tried.case.builder().needs_data else steps, np.inf, Stop())
        mean = max(mean, np.mean(run.parts.evaluator.run(0, 20, 0, Stop()).returns))
        if mean >= 0.85 * tried.kind.best:
            break
    assert mean >= 0.85 * tried.kind.best


def test_every_agent_has_a_row():
    assert {*catalogue.AGENTS} <= {row.agent for row in AGENTS.values()}


def test_who_drives_nests_of_actions_is_seen_to_learn_them():
    learn = {row.agent for row in AGENTS.values() if "structured" in row.kinds}
    spec = environments.make_spec(environments.make("fake/match", seed=0, structured=True))
    assert learn & {*catalogue.AGENTS} == {*catalogue.driving(spec)}


def test_unknown_agents_are_refused_with_what_there_is():
    with pytest.raises(ValueError, match="Did you mean dqn"):
        find_builder("dqm")
    with pytest.raises(ValueError, match=r"dqn, .*ppo"):
        find_builder("sarsa")
    with pytest.raises(ValueError, match="not a subclass"):
        find_builder("troupe.agents.learning.learner:SGDLearner")
