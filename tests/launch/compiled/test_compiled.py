"""Compiled runs: what they learn, leave behind, go on from, and refuse."""

import dataclasses
import json
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe import environments, launch
from troupe.agents import find_builder
from troupe.agents.ppo import PPOBuilder, PPOConfig
from troupe.environments import functional
from troupe.launch import running, seeds
from troupe.launch.compiled import components, evaluator
from troupe.launch.compiled.program import LoopProgram
from troupe.launch.errors import DivergedError, RequestError
from troupe.launch.evaluation.evaluator import play
from troupe.launch.experiment import Checkpointing, Evaluation
from troupe.launch.files.checkpoints import Store
from troupe.launch.files.directory import RunDirectory
from troupe.launch.local.components import make_environment
from troupe.launch.signals import Stop
from troupe.launch.specification.recipe import Recipe

from ...agents.rows import AGENTS, FULL

SMALL = {"hidden_sizes": (8,), "num_envs": 4, "rollout_length": 8, "num_minibatches": 2}
PPO = Recipe(
    "ppo",
    "jax:CartPole-v1",
    SMALL,
    steps=400,
    evaluation=Evaluation(every=150, episodes=3, final_episodes=5, num_envs=2),
)
DQN = Recipe(
    "dqn",
    "jax:CartPole-v1",
    {
        **{"hidden_sizes": (8,), "num_envs": 3, "batch_size": 4, "min_replay_size": 16},
        **{"samples_per_insert": 2.0, "steps_per_dispatch": 2, "priority_exponent": 0.6},
        **{"n_step": 2, "max_replay_size": 200},
    },
    steps=400,
    evaluation=Evaluation(every=150, episodes=3, final_episodes=5, num_envs=2),
)


def run(recipe, out, kind="compiled", **options):
    request = dataclasses.replace(recipe, launch=kind).to_json()
    launcher = running.runner(kind, {})
    return launcher(recipe.experiment(), out, progress=False, request=request, **options)


def learned(out):
    """The leaves of the newest checkpoint's learner, by name."""
    path = Store(RunDirectory(out).checkpoints).newest(pytest.fail).path / "learner.npz"
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files if name != "structure"}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_ppo_learns_what_it_learns_in_one_process(tmp_path):
    """Rollouts are learned from in order, so that nothing but the rounding can differ."""
    results = [run(PPO, tmp_path / kind, kind) for kind in ("compiled", "one-process")]
    assert results[0].learner_steps == results[1].learner_steps > 5
    assert results[0].episodes == results[1].episodes > 5
    assert results[0].actor_steps == results[1].actor_steps
    mine, other = (learned(tmp_path / kind) for kind in ("compiled", "one-process"))
    assert mine.keys() == other.keys()
    for name in mine:
        np.testing.assert_allclose(mine[name], other[name], rtol=2e-3, atol=2e-4, err_msg=name)
    for entry, twin in zip(results[0].evaluation, results[1].evaluation, strict=True):
        assert entry["actor_steps"] == twin["actor_steps"]
        assert entry["mean"] == pytest.approx(twin["mean"], rel=0.2)


def test_the_replay_keeps_the_pace_of_one_process(tmp_path):
    """The draws are others; all that is counted is the same while policies act alike."""
    recipe = dataclasses.replace(DQN, config={**DQN.config, "epsilon_decay_steps": 10**6})
    results = [run(recipe, tmp_path / kind, kind) for kind in ("compiled", "one-process")]
    mine, other = results
    assert mine.learner_steps == other.learner_steps > 100
    assert (mine.actor_steps, mine.episodes) == (other.actor_steps, other.episodes)
    assert mine.samples_per_insert == other.samples_per_insert


def test_a_run_leaves_what_every_run_leaves(tmp_path):
    out = tmp_path / "run"
    result = run(DQN, out)
    found = json.loads((out / "result.json").read_text())
    assert found == result.to_json()
    assert found["launch"] == "compiled"
    assert [entry["episodes"] for entry in found["evaluation"]] == [3, 3, 5]
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert "loss" in next(row for row in reversed(rows) if row["kind"] == "train")
    assert json.loads((out / "config.json").read_text())["launch"] == "compiled"
    assert launch.load_policy(out) is not None
    assert len(launch.evaluate(out, episodes=2).returns) == 2


def test_a_seed_repeats_a_run_and_evaluations_change_nothing(tmp_path):
    run(DQN, tmp_path / "a")
    often = dataclasses.replace(DQN, evaluation=Evaluation(every=40, episodes=1))
    run(often, tmp_path / "b")
    run(dataclasses.replace(DQN, seed=1), tmp_path / "c")
    assert_same(learned(tmp_path / "a"), learned(tmp_path / "b"))
    with pytest.raises(AssertionError):
        assert_same(learned(tmp_path / "a"), learned(tmp_path / "c"))


@pytest.mark.parametrize("recipe", [PPO, DQN], ids=["ppo", "dqn"])
def test_a_run_goes_on_bit_for_bit(recipe, tmp_path):
    """Unlike in other launches even episodes go on in their middle."""
    whole = run(recipe, tmp_path / "whole")
    run(dataclasses.replace(recipe, steps=200), tmp_path / "parts")
    parts = run(recipe, tmp_path / "parts", resume=True)
    assert_same(learned(tmp_path / "whole"), learned(tmp_path / "parts"))
    assert parts.evaluation[-1] == whole.evaluation[-1]
    assert (parts.episodes, parts.actor_steps) == (whole.episodes, whole.actor_steps)


@pytest.mark.parametrize("kinds", [("compiled", "one-process"), ("one-process", "compiled")])
def test_a_run_goes_on_in_another_launch(kinds, tmp_path):
    first, second = kinds
    run(dataclasses.replace(DQN, steps=200), tmp_path / "run", first)
    result = launch.resume(tmp_path / "run", launch=second, steps=400, progress=False)
    assert result.launch == second
    assert result.actor_steps in (398, 399, 400)
    assert result.learner_steps > 60


def test_a_replay_that_is_not_kept_begins_empty(tmp_path):
    kept = dataclasses.replace(DQN, checkpointing=Checkpointing(replay="never"))
    run(dataclasses.replace(kept, steps=200), tmp_path / "run")
    result = run(kept, tmp_path / "run", resume=True)
    assert result.actor_steps >= 398


def test_evaluations_are_those_of_one_environment_after_the_other(tmp_path):
    """The compiled evaluation plays the episodes that the host's does."""
    experiment = PPO.experiment()
    with make_environment(experiment, 0) as environment:
        blueprint = components.Blueprint([experiment])
        made = blueprint.member(blueprint.population(), 0, experiment, environment)
        mine = made.evaluator.run(0, 5, 0, Stop())
        seed = seeds.derive(0, "evaluation_environment", 0)
        with experiment.make_environment(seed=seed, num_envs=2, evaluation=True) as other:
            expected = play(other, made.evaluator._actor(2), 5)
    assert mine.returns == pytest.approx(expected.returns)


ACTING = [
    name
    for name, row in AGENTS.items()
    if "docs" not in name
    and not find_builder(row.agent).needs_data
    and not find_builder(row.agent).mixes_data
    and row.kinds[0] not in ("text", "words")  # No program can hold a text's score.
]
CONTINUOUS = ("continuous", "several")
RUN = {*ACTING} if FULL else {"impala with a memory", "rnd around normalised dqn", "sac"}
"""Agents that run here, beside PPO and DQN: of each kind of memory and wrapper one."""
assert {*ACTING} >= RUN


def recipe_of(name):
    row = AGENTS[name]
    continuous = row.kinds[0] in CONTINUOUS
    return Recipe(
        row.agent,
        "jax:Pendulum-v1" if continuous else "jax:CartPole-v1",
        {**row.config, **({"min_replay_size": 20} if "min_replay_size" in row.config else {})},
        steps=400,
        environment={"max_episode_steps": 20},
        evaluation=Evaluation(every=10**6, final_episodes=2),
    )


@pytest.mark.parametrize("name", [name for name in ACTING if name not in RUN])
def test_every_agent_that_acts_is_one_program(name, monkeypatch):
    """Traced: compiled it takes ten times as long, and is with TROUPE_FULL=1."""
    shapes = lambda self, *keys: jax.eval_shape(self._begin, self._settings, *keys)  # noqa: E731
    monkeypatch.setattr(LoopProgram, "init", shapes)
    experiment = recipe_of(name).experiment()
    with make_environment(experiment, 0) as environment:
        blueprint = components.Blueprint([experiment])
        population = blueprint.population()
        blueprint.member(population, 0, experiment, environment)
    program, before = population.program, population.state
    counts = jnp.int32(400), jnp.int32(1)
    after, progress = jax.eval_shape(program._run, {}, before, jax.random.key(0), *counts)
    assert jax.tree.structure(after) == jax.tree.structure(before)
    for one, other in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert progress.metrics


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(RUN))
def test_agents_that_act_are_compiled(name, tmp_path):
    result = run(recipe_of(name), tmp_path / "run")
    assert result.learner_steps > 0
    assert result.evaluation[-1]["episodes"] == 2
    for value in learned(tmp_path / "run").values():
        assert value.dtype.kind != "f" or np.isfinite(value).all()


TRAIN = """
import sys
from troupe.baselines.command.line import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_stopped_or_killed_goes_on(number, tmp_path):
    out = tmp_path / "run"
    arguments = [
        *(
            "train",
            "ppo",
            "--env",
            "jax:CartPole-v1",
            "--launch",
            "compiled",
            "--steps",
            "1000000000",
        ),
        # A program that other tests have compiled.
        *("--config.hidden_sizes", "8", "--config.num_envs", "4", "--config.rollout_length", "8"),
        *("--config.num_minibatches", "2", "--checkpoint-every", "0.5", "--out", str(out)),
    ]
    process = subprocess.Popen([sys.executable, "-c", TRAIN, *arguments], stdout=subprocess.DEVNULL)
    try:
        store, until = Store(RunDirectory(out).checkpoints), time.monotonic() + 120
        while not (out.is_dir() and len(store.paths()) > 1):
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        code = process.wait(60)
    finally:
        process.kill()
    assert code == (-9 if number == signal.SIGKILL else 130)
    before = store.newest(lambda line: None).counters
    result = launch.resume(out, steps=before["actor_steps"] + 2_000, progress=False)
    assert result.actor_steps >= before["actor_steps"] + 1_990
    assert result.learner_steps > before["learner_steps"]


def nan_after(steps):
    """CartPole whose reward is NaN from some step of an episode on."""
    inner = functional.make("jax:CartPole-v1")

    def step(state, action, key):
        state, output = inner.step(state, action, key)
        reward = jnp.where(state[1] >= steps, jnp.nan, output.reward)
        return state, output._replace(reward=reward)

    return inner._replace(step=step)


def calling(environment):
    def step(state, action, key):
        jax.debug.print("{}", action)
        return environment.step(state, action, key)

    return environment._replace(step=step)


def experiment(builder, functions, steps=2_000):
    def make(*, seed, num_envs, evaluation):
        seeds = [environments.derive_seed(seed, i) for i in range(num_envs)]
        return functional.FunctionalVector(functions, "own", seeds)

    return launch.Experiment(builder, make, "own", num_actor_steps=steps)


def test_a_number_that_is_not_finite_ends_the_run(tmp_path):
    config = PPOConfig(**{**SMALL, "hidden_sizes": (8,)})
    with pytest.raises(DivergedError, match="nan"):
        running.runner("compiled", {})(
            experiment(PPOBuilder(config), nan_after(3)), tmp_path / "run", progress=False
        )


def test_an_episode_that_does_not_end_is_told_once(monkeypatch):
    monkeypatch.setattr(evaluator, "LONG_EPISODE", 1_500)
    inner = functional.make("jax:CartPole-v1")

    def step(state, action, key):
        state, output = inner.step(state, action, key)
        return state, output._replace(terminated=jnp.bool_(False), truncated=jnp.bool_(False))

    endless = experiment(
        PPOBuilder(PPOConfig(**SMALL)), inner._replace(step=step, max_episode_steps=None)
    )
    told, stop = [], Stop()
    looked = iter([False] * 5)
    monkeypatch.setattr(Stop, "requested", property(lambda self: next(looked, True)))
    with make_environment(endless, 0) as environment:
        blueprint = components.Blueprint([endless])
        made = blueprint.member(blueprint.population(), 0, endless, environment)
        assert made.evaluator.run(0, 2, 0, stop, say=told.append) is None
    (line,) = told
    assert "--env.max_episode_steps" in line


class OwnActor(PPOBuilder):
    def make_actor(self, *arguments, **options):
        return super().make_actor(*arguments, **options)


class Looking(PPOBuilder):
    def make_policy(self, *arguments, **options):
        policy = super().make_policy(*arguments, **options)

        def select_action(params, observation, state):
            jax.debug.print("{}", observation)
            return policy.select_action(params, observation, state)

        return policy._replace(select_action=select_action)


CARTPOLE = functional.make("jax:CartPole-v1")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: dataclasses.replace(PPO, env="CartPole-v1").experiment(), "not written in JAX"),
        (lambda: experiment(OwnActor(PPOConfig(**SMALL)), CARTPOLE), "make_actor of its own"),
        (lambda: experiment(PPOBuilder(PPOConfig(**SMALL)), calling(CARTPOLE)), "the environment"),
        (lambda: experiment(Looking(PPOConfig(**SMALL)), CARTPOLE), "the policy calls the host"),
        (lambda: experiment(PPOBuilder(PPOConfig(**SMALL)), CARTPOLE, 2**31), "counts"),
    ],
)
def test_what_cannot_be_compiled_is_said_in_a_line(made, words, tmp_path):
    with pytest.raises(RequestError, match=words) as caught:
        running.runner("compiled", {})(made(), tmp_path / "run", progress=False)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_roles_are_of_other_launches():
    with pytest.raises(RequestError, match="--actors needs"):
        running.runner("compiled", {"actors": 2})


def test_a_replay_that_does_not_fit_is_refused_before_anything_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(components, "_memory", lambda device: 1_000)
    with pytest.raises(RequestError, match="GiB of the device's memory"):
        run(DQN, tmp_path / "run")
    assert not (tmp_path / "run").exists()
