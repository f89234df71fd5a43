"""Mistakes that are planted in an agent are each found and named, and what is right is not."""

import dataclasses
import itertools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe import environments, launch
from troupe.agents import UpdateOutput, find_builder
from troupe.agents.acting import policies
from troupe.agents.dqn import DQNBuilder, DQNConfig
from troupe.baselines.command.line import main
from troupe.launch.conformance import short_run, table
from troupe.launch.distributed.deploy import deploy

from ... import demonstrations


class Planted(DQNBuilder):
    """DQN with one mistake."""

    update = policy = None

    def make_update(self, networks, spec):
        update = super().make_update(networks, spec)._replace(steps=None)
        return update if self.update is None else self.update(update)

    def make_policy(self, networks, spec, **options):
        core = super().make_policy(networks, spec, **options)
        return core if self.policy is None else self.policy(core, networks)


def on_state(change):
    """A fault of the state that a step returns."""

    def fault(update):
        def step(state, sample):
            state, output = update.step(state, sample)
            return change(state), output

        return update._replace(step=step)

    return fault


def on_output(change):
    def fault(update):
        def step(state, sample):
            state, output = update.step(state, sample)
            return state, change(output)

        return update._replace(step=step)

    return fault


def on_data(change):
    """A fault of what a step makes of its batch."""

    def fault(update):
        def step(state, sample):
            return update.step(state, sample._replace(data=change(sample.data)))

        return update._replace(step=step)

    return fault


def on_action(change):
    def fault(core, networks):
        def select_action(params, observation, state):
            action, after = core.select_action(params, observation, state)
            return change(action), after

        return core._replace(select_action=select_action)

    return fault


def one_array_twice(update):
    def init(key):
        state = update.init(key)
        return state._replace(target_params=state.params)

    return update._replace(init=init)


def frozen_state(core, networks):
    return core._replace(
        select_action=lambda params, observation, state: (
            core.select_action(params, observation, state)[0],
            state,
        )
    )


def count_as_float(core, networks):
    def select_action(params, observation, state):
        action, after = core.select_action(params, observation, state)
        return action, after._replace(num_actions=after.num_actions.astype(jnp.float32))

    return core._replace(select_action=select_action)


def counted_by_python(update):
    calls = []

    def step(state, sample):
        calls.append(None)
        return update.step(state, sample._replace(data=scaled(sample.data, len(calls))))

    return update._replace(step=step)


def scaled(data, factor):
    return data._replace(reward=factor * data.reward)


def drawn_by_a_callback(data):
    shape = jax.ShapeDtypeStruct((), np.float32)
    return scaled(data, jax.pure_callback(lambda: np.float32(np.random.random()), shape))


PRIORITISED = {"priority_exponent": 0.6}
# Name: what is planted where, further fields of the config, the row that finds it, and its words.
UPDATES = {
    "wrong shape": (
        on_data(lambda data: data._replace(next_observation=data.next_observation[:, :2])),
        {},
        "update",
        ["cannot be traced", "test_planted.py:", "Transition of observation float32[8, 4]"],
    ),
    "no policy": (
        lambda update: update._replace(variables=lambda state: {"params": state.params}),
        {},
        "update",
        ["gives params and no 'policy'", 'return {"policy": ...}'],
    ),
    "one array twice": (
        one_array_twice,
        {},
        "purity",
        ["holds one array twice, as .params", "as .target_params", "Make a copy"],
    ),
    "a field is lost": (
        on_state(lambda state: state._replace(optimizer=())),
        {},
        "update",
        ["another structure: it lacks .optimizer"],
    ),
    "another dtype": (
        on_state(lambda state: state._replace(steps=state.steps.astype(jnp.float32))),
        {},
        "update",
        ["is float32[] at .steps", "must be int32[]"],
    ),
    "priorities of a wrong shape": (
        on_output(lambda output: output._replace(priorities=jnp.mean(output.priorities))),
        PRIORITISED,
        "update",
        ["priorities is float32[]", "float32[8]"],
    ),
    "no priorities": (
        on_output(lambda output: output._replace(priorities=None)),
        PRIORITISED,
        "update",
        ["replay is prioritised", "gives no priorities"],
    ),
    "a metric that is no scalar": (
        on_output(lambda output: UpdateOutput({"loss": jnp.ones(3)})),
        {},
        "update",
        ["metric 'loss' is float32[3]", "take its mean"],
    ),
    "no UpdateOutput": (on_output(lambda output: {}), {}, "update", ["returns (state, dict)"]),
    "numpy's random numbers": (
        on_data(lambda data: scaled(data, np.random.random())),
        {},
        "purity",
        ["not pure", "jax.random"],
    ),
    "what Python counts": (counted_by_python, {}, "purity", ["not pure", "in the state"]),
    "random numbers of a callback": (on_data(drawn_by_a_callback), {}, "", ["not pure|one seed"]),
    "nan": (
        on_data(lambda data: scaled(data, jnp.log(-1.0 - jnp.abs(data.reward)))),
        {},
        "short run",
        ["is nan after", "logarithm"],
    ),
    "nothing is learned": (
        lambda update: update._replace(variables=lambda state: {"policy": state.target_params}),
        {"target_update_period": 1000},
        "short run",
        ["did not change in 8 gradient steps"],
    ),
}
POLICIES = {
    "unbatched apply": (
        lambda core, networks: policies.epsilon_greedy(networks.apply, 0.1),
        ["exploring policy", "evaluation policy"],
        ["one observation, float32[4], without a batch", "observation[None]"],
    ),
    "wrong dtype": (
        on_action(lambda action: action.astype(jnp.float32)),
        ["exploring policy", "evaluation policy"],
        ["the action is float32[]", "must be int32[]"],
    ),
    "an action too many": (
        on_action(lambda action: action[None]),
        ["exploring policy", "evaluation policy"],
        ["the action is int32[1]", "must be int32[]"],
    ),
    "the state of another dtype": (
        count_as_float,
        ["exploring policy", "evaluation policy"],
        ["the state that select_action returns", "float32[] at .num_actions"],
    ),
    "the key is ignored": (
        lambda core, networks: core._replace(init=lambda key: core.init(jax.random.key(0))),
        ["exploring policy", "evaluation policy"],
        ["ignores the key"],
    ),
    "the same numbers at every step": (frozen_state, ["actions"], ["state stays as it is"]),
    "out of the spec": (on_action(lambda action: action + 4), ["actions"], ["from 0 to 3"]),
}


def experiment(**config):
    fields = {"hidden_sizes": (8,), "batch_size": 8, "min_replay_size": 1000, "num_envs": 2}
    builder = Planted(DQNConfig(**{**fields, **config}))

    def make(*, seed, num_envs, evaluation):
        return environments.make("fake/match", seed=seed, num_envs=num_envs)

    return launch.Experiment(builder, make, "fake/match", 5_000)


def found(made):
    findings = list(table.check(made))
    assert all("\n" not in finding.text for finding in findings)
    return {finding.name: finding for finding in findings}


@pytest.mark.parametrize("name", UPDATES)
def test_a_mistake_in_an_update_is_named(name):
    fault, config, row, words = UPDATES[name]
    made = experiment(**config)
    made.builder.update = fault
    findings = found(made)
    failed = [finding for finding in findings.values() if finding.status == "failed"]
    assert [finding.name for finding in failed] == ([row] if row else [failed[0].name])
    for word in words:
        assert any(part in failed[0].text for part in word.split("|")), failed[0].text


@pytest.mark.parametrize("name", POLICIES)
def test_a_mistake_in_a_policy_is_named(name):
    fault, rows, words = POLICIES[name]
    made = experiment()
    made.builder.policy = fault
    failed = [finding for finding in found(made).values() if finding.status == "failed"]
    assert [finding.name for finding in failed] == rows
    for word in words:
        assert word in failed[0].text, failed[0].text


def test_an_agent_without_mistakes_passes():
    findings = found(experiment(**PRIORITISED))
    assert [f for f in findings.values() if f.status != "ok"] == []
    assert [*findings] == [row.name for row in table.TABLE if row.name != "mesh"]


def test_runs_of_one_seed_are_of_one_length_where_the_first_ran_out_of_time(monkeypatch):
    # What has to be compiled before the learner's first step takes 100 s, and no time again.
    ticks = itertools.chain([0.0] * 3, itertools.repeat(100.0))
    monkeypatch.setattr(short_run, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    findings = found(experiment())
    assert [f for f in findings.values() if f.status != "ok"] == []
    assert ", 2 gradient steps" in findings["short run"].text


@pytest.mark.parametrize("agent", ["dqn", "sqil+dqn"])
def test_what_learns_from_data_is_checked_with_it(agent):
    builder_class = find_builder(agent)
    builder = builder_class(builder_class.config_class(hidden_sizes=(8,), batch_size=8))
    budget = {"num_actor_steps": 100} if builder.mixes_data else {"num_learner_steps": 8}
    budget = {"num_actor_steps": None, **budget}
    made = dataclasses.replace(experiment(), builder=builder, data=demonstrations.match(), **budget)
    findings = found(made)
    assert [f for f in findings.values() if f.status != "ok"] == []
    assert findings["short run"].text.startswith("0 actor steps") == (agent == "dqn")


def test_a_mesh_is_planned_where_there_are_fewer_devices(capsys):
    arguments = ["check", "dqn", "--env", "fake/match", "--schedule", "batch:data"]
    tiny = ["--config.hidden_sizes", "8", "--config.batch_size", "16"]
    devices = len(jax.devices())
    assert main([*arguments, *tiny, "--mesh", f"data={2 * devices}"]) == 0
    assert f"jax has {devices} here, so what runs is not" in capsys.readouterr().out
    assert main([*arguments, *tiny, "--mesh", "data=3"]) == 1
    output = capsys.readouterr().out
    assert re.search(
        r"mesh +FAILED +a step of a batch of 16 cannot be planned on the mesh data=3", output
    )
    assert re.search(r"actions +left out +it needs: mesh", output)


@pytest.mark.parametrize("name", ["wrong shape", "no policy", "another dtype"])
def test_a_run_does_not_wait_for_the_first_batch(tmp_path, name):
    made = experiment()
    made.builder.update = UPDATES[name][0]
    with pytest.raises(launch.RequestError, match=r"Update\.step|no 'policy'") as refusal:
        launch.run(made, tmp_path / "run")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()
    with pytest.raises(launch.RequestError, match=r"Update\.step|no 'policy'"):
        deploy(made, tmp_path / "run")


def test_the_command_says_what_failed_and_what_was_left_out(capsys):
    assert main(["check", "dqn", "--env", "Pendulum-v1"]) == 1
    output = capsys.readouterr()
    assert re.search(r"networks +FAILED +.*dqn drives one discrete action", output.out)
    assert re.search(r"update +left out +it needs: networks", output.out)
    assert re.fullmatch(r"troupe: 1 of the checks failed, after [\d.]+ s\.\n", output.err)
    assert main(["check", "dqn", "--env", "Pendulm-v1"]) == 2
    assert "near names: Pendulum-v1" in capsys.readouterr().err
