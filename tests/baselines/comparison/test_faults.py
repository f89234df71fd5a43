"""Faults that are planted in an agent: a comparison with the ledger calls each of them different.

What no fault was planted in is equivalent, though all that is random in it was drawn otherwise.
"""

import dataclasses
import os

import jax
import jax.numpy as jnp
import pytest

from troupe.agents.dqn import DQNBuilder
from troupe.agents.dqn import update as dqn_update
from troupe.agents.replay.device import DeviceReplay, windows
from troupe.agents.replay.items import Transitions
from troupe.baselines.command.line import main
from troupe.baselines.comparison import runs
from troupe.baselines.returns import ledger
from troupe.baselines.tuned import Tuned
from troupe.launch import seeds
from troupe.launch.experiment import Evaluation
from troupe.launch.logging import report
from troupe.launch.specification.recipe import Recipe

from . import tasks

pytestmark = pytest.mark.long
FULL = bool(os.environ.get("TROUPE_FULL"))
SEEDS = {"patience": 40, "stairs": 60}
"""The most of each task: as many as its spread asks for, where returns are equal."""
BATCH = 10
STALE = 5_000
# Of one layer without a hidden one, whose inputs name a state: a table of values.
TABLE = {"hidden_sizes": (), "loss": "squared", "max_gradient_norm": None}
TASKS = {
    # Actions are drawn at random, so that what is learned does not depend on what was before.
    "patience": Tuned(
        "dqn",
        f"jax:{tasks.__name__}:patience",
        {
            **{**TABLE, "epsilon_end": 1.0, "num_envs": 8, "steps_per_dispatch": 8},
            **{"min_replay_size": 64, "samples_per_insert": 32.0, "target_update_period": 8},
            **{"learning_rate": 0.05, "learning_rate_steps": 2_500},
        },
        steps=5_000,
        target=1.0,
        evaluation_every=1_000,
    ),
    # With an epsilon of 1 Adam goes by the size of a gradient, not only by its sign.
    "stairs": Tuned(
        "dqn",
        f"jax:{tasks.__name__}:stairs",
        {
            **{**TABLE, "epsilon_end": 0.1, "epsilon_decay_steps": 1_000, "num_envs": 16},
            **{"batch_size": 16, "min_replay_size": 100, "max_replay_size": 4_096},
            **{"samples_per_insert": 4.0, "steps_per_dispatch": 1, "discount": 0.0},
            **{"learning_rate": 1.0, "adam_epsilon": 1.0},
            **{"priority_exponent": 1.0, "importance_exponent": 0.0},
        },
        steps=3_000,
        target=10.0,
        evaluation_every=500,
    ),
}


def on_step(change):
    """A fault of the step of DQN's update."""
    make_update = DQNBuilder.make_update

    def plant(patch):
        def faulty(builder, networks, spec):
            update = make_update(builder, networks, spec)
            return update._replace(step=change(update.step), steps=None)

        patch.setattr(DQNBuilder, "make_update", faulty)

    return plant


def discount_of_98(patch):
    make_update = DQNBuilder.make_update

    def faulty(builder, networks, spec):
        other = DQNBuilder(dataclasses.replace(builder.config, discount=0.98))
        return make_update(other, networks, spec)

    patch.setattr(DQNBuilder, "make_update", faulty)


def one_reward_too_many(patch):
    def faulty(builder, spec):
        return Transitions(builder.config.n_step + 1, builder.config.discount)

    patch.setattr(DQNBuilder, "make_item", faulty)


def last_steps_dropped(patch):
    advance, last = windows.TransitionFinder.advance, 2

    def faulty(finder, state, row, reward, discount, kinds):
        state, found = advance(finder, state, row, reward, discount, kinds)
        return state, found._replace(valid=found.valid & (kinds != last))

    patch.setattr(windows.TransitionFinder, "advance", faulty)


def mean_taken_twice(patch):
    descend = dqn_update.descend

    def faulty(loss, optimizer, params, *arguments, **options):
        def divided(*inputs):
            value, aux = loss(*inputs)
            return value / len(aux[0]), aux

        return descend(divided, optimizer, params, *arguments, **options)

    patch.setattr(dqn_update, "descend", faulty)


def priorities_never_written_back(patch):
    patch.setattr(DeviceReplay, "update_priorities", lambda replay, state, *given: state)


def parameters_stale(patch):
    """Actors have the parameters of the last multiple of 5,000 gradient steps, evaluators the
    newest."""
    make_update, make_policy = DQNBuilder.make_update, DQNBuilder.make_policy

    def faulty_update(builder, networks, spec):
        update = make_update(builder, networks, spec)

        def init(key):
            state = update.init(key)
            return state, jax.tree.map(jnp.copy, state.params)

        def step(states, sample):
            state, stale = states
            state, output = update.step(state, sample)
            is_due = state.steps % STALE == 0
            stale = jax.tree.map(lambda new, old: jnp.where(is_due, new, old), state.params, stale)
            return (state, stale), output

        def variables(states):
            return {"policy": (states[0].params, states[1])}

        return update._replace(init=init, step=step, variables=variables, steps=None)

    def faulty_policy(builder, networks, spec, *, evaluation=False, num_streams=1):
        core = make_policy(builder, networks, spec, evaluation=evaluation, num_streams=num_streams)

        def select_action(params, observation, state):
            return core.select_action(params[0 if evaluation else 1], observation, state)

        return core._replace(select_action=select_action)

    patch.setattr(DQNBuilder, "make_update", faulty_update)
    patch.setattr(DQNBuilder, "make_policy", faulty_policy)


def same_share(step, ranks=16):
    """Every rank of a gang learns from the rows of the first.

    Rows are drawn alike, so that the mean of a gradient stays and its variance grows with the
    ranks. Of two ranks that is too little for returns to tell; `test_gang_numbers` sees it in one
    gradient step.
    """

    def faulty(state, sample):
        def shared(rows):
            return jnp.concatenate([rows[: len(rows) // ranks]] * ranks)

        return step(state, jax.tree.map(shared, sample))

    return faulty


FAULTS = {
    "discount of 0.98": ("patience", discount_of_98),
    "n-step off by one": ("patience", one_reward_too_many),
    "last steps dropped": ("patience", last_steps_dropped),
    "parameters stale": ("stairs", parameters_stale),
    "mean taken twice": ("stairs", mean_taken_twice),
    "priorities never written back": ("stairs", priorities_never_written_back),
    "ranks of one share": ("stairs", on_step(same_share)),
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A ledger of its own. What it is called with has a row there, of runs without a fault."""
    folder = tmp_path_factory.mktemp("faults")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "FOLDER", folder / "ledger")
        known = set()

        def add(name):
            if name in known:
                return
            known.add(name)
            task, reporter = TASKS[name], report.Reporter()
            evaluation = Evaluation(every=task.evaluation_every)
            recipe = Recipe(
                task.agent, task.env, task.config, steps=task.steps, evaluation=evaluation
            )
            recipe = dataclasses.replace(recipe, launch="compiled")
            for number in range(
                BATCH, SEEDS[name] + 1, BATCH
            ):  # Programs of as many as are compared.
                figures = runs.run(recipe, number, folder / name, reporter)
            row = ledger.LedgerRow.of(recipe, dict(enumerate(figures)), "healthy")
            ledger.append(row, recipe)

        yield add


def compare(task, out):
    options = ("--scales", "compiled", "--ledger", "--batch", str(BATCH), "--out", str(out))
    return main(["compare", "dqn", "--env", TASKS[task].env, *options], [*TASKS.values()])


ALWAYS = ("discount of 0.98", "last steps dropped", "patience")
"""Faults and tasks: runs on the stairs take minutes."""


def in_turn(name):
    is_skipped = not FULL and name not in ALWAYS
    return pytest.param(
        name, marks=pytest.mark.skipif(is_skipped, reason="minutes; set TROUPE_FULL=1")
    )


@pytest.mark.parametrize("name", [*map(in_turn, FAULTS)])
def test_a_fault_is_called_different(name, rows, tmp_path, monkeypatch, capsys):
    task, plant = FAULTS[name]
    rows(task)
    plant(monkeypatch)
    assert compare(task, tmp_path / "out") == 1
    said = capsys.readouterr()
    print(said.out)
    assert "compiled  different, after " in said.out
    assert said.err.endswith("differ from those at compiled of healthy.\n")


@pytest.mark.parametrize("task", [*map(in_turn, TASKS)])
def test_what_draws_otherwise_is_called_equivalent(task, rows, tmp_path, monkeypatch, capsys):
    rows(task)
    derive = seeds.derive
    monkeypatch.setattr(
        seeds, "derive", lambda seed, role, *indices: derive(seed + 1_000, role, *indices)
    )
    assert compare(task, tmp_path / "out") == 0
    said = capsys.readouterr().out
    print(said)
    assert "compiled  equivalent, after " in said
