"""The table of agents against spaces: it is true, the docs have it, and messages come from it."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from troupe.agents import action_spaces, catalogue, find_builder
from troupe.agents.action_spaces import (
    ANSWERS,
    BOX,
    CHOICE,
    CHOICES,
    DRIVEN,
    KINDS,
    NEST,
    REALS,
)
from troupe.environments.specs import AnswerArray, EnvironmentSpec
from troupe.launch.validation import policies

NUMBER = specs.Array((), np.float32)
CHOOSE = specs.DiscreteArray(3, np.int32)
PUSH = specs.BoundedArray((2,), np.float32, -1.0, [1.0, 2.0])
SEVERAL = specs.BoundedArray((2,), np.int32, 0, [1, 3])
ACTIONS = {
    "Discrete": (CHOICE, CHOOSE),
    "MultiDiscrete": (CHOICES, SEVERAL),
    "MultiDiscrete from other numbers": (CHOICES, specs.BoundedArray((2,), np.int32, [-1, 5], 6)),
    "MultiBinary": (CHOICES, specs.BoundedArray((2, 2), np.int8, 0, 1)),
    "Box": (BOX, PUSH),
    "a number": (BOX, specs.BoundedArray((), np.float32, -1.0, 1.0)),
    "Box without bounds": (REALS, specs.Array((2,), np.float32)),
    "Box with one bound": (REALS, specs.BoundedArray((2,), np.float32, 0.0, np.inf)),
    "Dict": (NEST, {"push": PUSH, "choose": CHOOSE}),
    "Dict of Dict and Tuple": (NEST, {"a": {"b": SEVERAL}, "c": (CHOOSE, NUMBER, PUSH)}),
    "Tuple of one": (NEST, (CHOOSE,)),
    "answers of tokens": (ANSWERS, AnswerArray((4, 6), 10, pad=0, end=1)),
}
OBSERVATIONS = {
    "Box": specs.Array((3,), np.float32),
    "Box of bytes": specs.BoundedArray((3,), np.uint8, 0, 255),
    "Box of one number": NUMBER,
    "image": specs.BoundedArray((36, 36, 3), np.uint8, 0, 255),
    "image, channels first": specs.BoundedArray((3, 36, 36), np.uint8, 0, 255),
    "grid": specs.BoundedArray((10, 10, 4), bool, False, True),
    "Discrete": specs.DiscreteArray(5, np.int32),
    "MultiDiscrete": SEVERAL,
    "MultiBinary": specs.BoundedArray((3,), np.int8, 0, 1),
    "Dict": {"push": PUSH, "choose": CHOOSE},
    "Tuple": ({"image": specs.BoundedArray((36, 36, 1), np.uint8, 0, 255)}, NUMBER),
}
TOKENS = specs.BoundedArray((6,), np.int32, 0, 9)
PROMPTS = {"prompt": TOKENS, "solution": TOKENS, "scores": specs.Array((4,), np.float32)}
SMALL = {
    "hidden_sizes": (8,),
    "width": 8,
    "num_layers": 1,
    "core_size": 8,
    "random_steps": 1,
    "steps_per_dispatch": 1,
}
ROOT = pathlib.Path(__file__).parents[2]


def builder_of(agent):
    builder_class = find_builder(agent)
    fields = builder_class.config_class.__dataclass_fields__
    return builder_class(builder_class.config_class(**{k: SMALL[k] for k in SMALL if k in fields}))


def drive(agent, observations, actions, which=("exploring", "evaluation")):
    """Traces policies of an agent, whose actions must be those of the spec."""
    spec = EnvironmentSpec(observations, actions, NUMBER, NUMBER)
    builder = builder_of(agent)
    networks = builder.make_networks(spec)
    state = jax.eval_shape(builder.make_update(networks, spec).init, jax.random.key(0))
    params = builder.make_update(networks, spec).variables(state)["policy"]
    for name in which:
        core = builder.make_policy(networks, spec, evaluation=name == "evaluation")
        policies.trace(core, params, spec, name)


def test_every_agent_and_every_kind_are_in_the_table():
    assert [*DRIVEN] == sorted(catalogue.AGENTS)
    assert {kind for kind, _ in ACTIONS.values()} == {*KINDS}


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("agent", DRIVEN)
def test_an_agent_drives_what_the_table_says_and_nothing_else(agent, name):
    kind, actions = ACTIONS[name]
    assert kind in action_spaces.kinds_of(actions)
    if kind in DRIVEN[agent]:
        drive(agent, PROMPTS if kind is ANSWERS else OBSERVATIONS["Box"], actions)
        assert agent in action_spaces.driving(actions)
        return
    words = rf"^{agent} drives .*{DRIVEN[agent][-1].name}; this environment's actions are .*\.$"
    with pytest.raises(ValueError, match=words) as refusal:
        drive(agent, OBSERVATIONS["Box"], actions)
    assert "\n" not in str(refusal.value)
    assert agent not in action_spaces.driving(actions)


@pytest.mark.parametrize("agent", [name for name in DRIVEN if ANSWERS not in DRIVEN[name]])
def test_an_agent_takes_every_observation(agent):
    actions = next(spec for kind, spec in ACTIONS.values() if kind in DRIVEN[agent])
    for observations in OBSERVATIONS.values():
        drive(agent, observations, actions, ["evaluation"])


def test_an_agent_of_answers_takes_prompts_alone():
    answers = ACTIONS["answers of tokens"][1]
    words = r"^grpo reads prompt, solution, scores of observations, .* are .*\.$"
    for observations in OBSERVATIONS.values():
        with pytest.raises(ValueError, match=words):
            drive("grpo", observations, answers)


def test_the_docs_have_the_table():
    rows = [
        f"| `{agent}` | " + " | ".join("yes" if kind in DRIVEN[agent] else "" for kind in KINDS)
        for agent in DRIVEN
    ]
    head = "| agent | " + " | ".join(kind.spaces for kind in KINDS) + " |"
    table = "\n".join([head, "|---" * (len(KINDS) + 1) + "|", *(f"{row} |" for row in rows)])
    assert table in (ROOT / "docs" / "agents.md").read_text(), f"docs/agents.md lacks\n{table}"


def test_who_drives_nothing_of_it_is_told_who_does():
    wide = specs.Array((2,), np.int32)  # Of integers without bounds.
    assert action_spaces.driving({"a": CHOOSE, "b": wide}) == action_spaces.driving(wide) == []
    refusal = str(action_spaces.refusal("rnd+dqn", {"a": CHOOSE}))
    assert re.match(r"rnd\+dqn drives one discrete action; .* a dict of \(one of 3\)\.$", refusal)
    refusal = str(action_spaces.refusal("mine", PUSH, CHOICE, CHOICES))
    assert "mine drives one discrete action or several discrete actions at once;" in refusal


@pytest.mark.parametrize("name", ACTIONS)
def test_drawn_actions_fit_their_spec_and_differ(name):
    _, actions = ACTIONS[name]
    keys = jax.random.split(jax.random.key(0), 200)
    drawn = jax.vmap(lambda key: action_spaces.draw(actions, key))(keys)
    for spec, leaf in zip(jax.tree.leaves(actions), jax.tree.leaves(drawn), strict=True):
        for one in np.asarray(leaf):
            spec.validate(one)
        assert leaf.dtype == spec.dtype
        for column in np.asarray(leaf).reshape(200, -1).T:
            assert len(np.unique(column)) > 1
        if action_spaces.kind_of(spec) in (CHOICE, CHOICES):
            assert (leaf == spec.minimum).any()
            assert (leaf == spec.maximum).any()


NESTED = {"push": PUSH, "several": SEVERAL, "choose": CHOOSE}
CHOSEN = {
    "push": jnp.float32([[3.0, -3.0]]),
    "several": jnp.int32([[1, 2]]),
    "choose": jnp.int32([2]),
}


def test_actions_become_vectors_with_choices_as_one_hot():
    vector = action_spaces.flatten(NESTED, CHOSEN)
    np.testing.assert_array_equal(vector, [[0, 0, 1, 3, -3, 0, 1, 0, 0, 0, 0, 1, 0]])
    shifted = specs.BoundedArray((1,), np.int32, 5, 6)
    np.testing.assert_array_equal(action_spaces.flatten(shifted, jnp.int32([[6]])), [[0, 1]])


def test_real_numbers_alone_are_moved_onto_their_bounds():
    moved = action_spaces.clip(NESTED, CHOSEN)
    np.testing.assert_array_equal(moved["push"], [[1.0, -1.0]])
    np.testing.assert_array_equal(moved["several"], CHOSEN["several"])
    unbounded = specs.Array((2,), np.float32)
    np.testing.assert_array_equal(action_spaces.clip(unbounded, CHOSEN["push"]), CHOSEN["push"])


def test_errors_are_shares_of_choices_and_distances_of_numbers():
    taken = {**CHOSEN, "push": jnp.float32([[2.0, -3.0]]), "several": jnp.int32([[1, 3]])}
    assert float(action_spaces.error(NESTED, CHOSEN, taken)) == pytest.approx((0.5 + 0.5 + 0) / 3)
    assert float(action_spaces.error(CHOOSE, jnp.int32([0, 1]), jnp.int32([0, 2]))) == 0.5
