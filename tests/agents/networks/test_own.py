"""Torsos of the user's own: what they are given, where they stand, and what is refused."""

import re
import sys

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from troupe import environments
from troupe.agents import AGENTS, find_builder
from troupe.agents.networks import own
from troupe.agents.networks.torsos import flatten, make_torso
from troupe.launch.errors import RequestError
from troupe.launch.experiment import Experiment

DISCRETE = {"c51", "dqn", "impala", "muzero", "ppo", "qrdqn", "r2d2", "rainbow"}
PARTS = {"image": specs.Array((40, 40, 3), np.uint8), "choice": specs.DiscreteArray(5)}


def mlp(spec):
    """The MLP that is made without it."""
    return lambda x: hk.nets.MLP((7,), activate_final=True)(flatten(spec)(x))


class Module(hk.Module):
    def __init__(self, spec):
        super().__init__()
        self.spec = spec

    def __call__(self, observation):
        return hk.Linear(3)(flatten(self.spec)(observation)).astype(jnp.bfloat16)


def raises(spec):
    return lambda observation: {}["the observation's part"]


def returns_none(spec):
    return None


def keeps_one(spec):
    return lambda observation: flatten(spec)(observation)[:1]


def of_integers(spec):
    return lambda observation: flatten(spec)(observation).astype(jnp.int32)


def of_one_row(spec):
    return lambda observation: flatten(spec)(observation)[:, 0]


def a_nest(spec):
    return lambda observation: (flatten(spec)(observation),)


number = 3


def named(function):
    return f"{__name__}:{function}"


def arrays(agent, env, **config):
    """Shapes of the parameters that an agent learns for an environment."""
    builder = find_builder(agent)
    config = {"hidden_sizes": (7,), **config}
    made = builder(builder.config_class(**config))
    with environments.make(env, seed=0) as environment:
        spec = environments.make_spec(environment)
    networks = made.make_networks(spec)
    update = made.make_update(networks, spec)
    return jax.eval_shape(lambda key: update.variables(update.init(key)), jax.random.key(0))


@pytest.mark.parametrize("agent", sorted({*AGENTS} - {"grpo"}))  # Whose prompts no torso sees.
def test_every_agent_has_it_in_place_of_its_own(agent):
    env = "fake/match" if agent in DISCRETE else "fake/continuous"
    ours = arrays(agent, env, torso=named("mlp"))
    # Noisy and duelling heads have the last of the MLP's layers.
    sizes = (7, 7) if agent == "rainbow" else (7,)
    assert ours == arrays(agent, env, hidden_sizes=sizes)
    other = arrays(agent, env, torso=named("Module"))
    assert jax.tree.leaves(other) != jax.tree.leaves(ours)


@pytest.mark.parametrize(("agent", "core"), [("ppo", "lstm"), ("impala", "gru"), ("ppo", "none")])
def test_it_stands_before_a_core(agent, core):
    ours = arrays(agent, "fake/match", torso=named("mlp"), core=core)
    assert ours == arrays(agent, "fake/match", core=core)


@pytest.mark.parametrize(("env", "modules"), [("fake/image", 1), ("fake/match", 2)])
def test_policy_and_value_share_it_where_they_share_convolutions(env, modules):
    learned = jax.tree_util.tree_flatten_with_path(arrays("ppo", env, torso=named("Module")))[0]
    paths = " ".join(jax.tree_util.keystr(path) for path, _ in learned)
    assert len({*re.findall(r"module\w*/", paths)}) == modules


def test_it_sees_nests_and_images_and_no_mask(monkeypatch):
    seen = []

    def look(spec):
        def features(observation):
            seen.append((spec, jax.tree.map(jnp.shape, observation)))
            return jnp.zeros((observation["image"].shape[0], 2))

        return features

    monkeypatch.setattr(sys.modules[__name__], "look", look, raising=False)
    masked = {**PARTS, "action_mask": specs.BoundedArray((4,), bool, 0, 1)}
    own.check(named("look"), masked)
    shapes = {"image": (3, 40, 40, 3), "choice": (3,)}
    assert seen[-1] == (PARTS, shapes)


def test_features_have_the_dtype_that_is_asked_for():
    x = np.ones((2, 4), np.float32)
    for dtype in (jnp.float32, jnp.bfloat16):
        torso = make_torso(specs.Array((4,), np.float32), (), torso=named("Module"), dtype=dtype)
        features = hk.transform(torso)
        params = features.init(jax.random.key(0), x)
        assert features.apply(params, None, x).dtype == dtype


BAD = {
    "no.such:make": "cannot be imported: ModuleNotFoundError: No module named 'no'",
    named("gone"): "cannot be imported: AttributeError",
    named("number"): "a int; it must be a function of the observations' spec",
    named("returns_none"): "returns a NoneType; it must return a function of observations",
    named("keeps_one"): r"makes float32\[1, 4\] of 3 observations; .* \[B, F\], here \[3, F\]",
    named("of_integers"): r"makes int32\[1, 4\] of 1 observations; .* floating-point",
    named("of_one_row"): r"makes float32\[1\] of 1 observations",
    named("a_nest"): "makes tuple of 1 observations",
}


@pytest.mark.parametrize("torso", BAD)
@pytest.mark.parametrize("agent", ["sac", "ppo"])
def test_one_that_is_none_is_refused_with_its_flag(agent, torso):
    with pytest.raises(RequestError, match=f"^--config.torso is {torso}, .*{BAD[torso]}"):
        refused(agent, torso)


def test_an_error_of_its_own_is_said_with_its_line():
    with pytest.raises(RequestError, match=r"^--config.torso \S+:raises .*KeyError.*test_own.py:"):
        refused("dqn", named("raises"))


def refused(agent, torso):
    builder = find_builder(agent)

    def make(*, seed, num_envs, evaluation):
        return environments.make("fake/match", seed=seed, num_envs=num_envs)

    config = builder.config_class(torso=torso, hidden_sizes=(7,))
    experiment = Experiment(builder(config), make, "fake/match", num_actor_steps=10)
    with environments.make("fake/match", seed=0) as environment:
        experiment.make_networks(environments.make_spec(environment))
