"""Masks of legal actions in what agents choose, bootstrap from, learn and search; `rows` has agents
that act and learn where illegal actions are refused."""

import dataclasses
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe import environments, launch
from troupe.agents import catalogue, find_builder, legal_actions
from troupe.agents.acting import policies
from troupe.agents.dqn import DQNBuilder, DQNConfig
from troupe.agents.dqn.update import make_update as make_dqn_update
from troupe.agents.muzero import MuZeroConfig
from troupe.agents.muzero.networks import make_networks as make_muzero_networks
from troupe.agents.muzero.search import make_search
from troupe.agents.networks.core import Network
from troupe.agents.networks.distributions import categorical
from troupe.agents.networks.recurrent import RecurrentNetwork
from troupe.agents.r2d2 import R2D2Config
from troupe.agents.r2d2.update import make_update as make_r2d2_update
from troupe.agents.replay.items import Sample, SampleInfo, Sequence, Transition
from troupe.baselines.command.line import main
from troupe.environments import action_masks
from troupe.launch.conformance import short_run, table
from troupe.launch.errors import RequestError

from .. import demonstrations
from ..environments import walls
from ..results import assert_same_bits
from .rows import AGENTS, KINDS, Case

NAMES = [name for name in catalogue.AGENTS if find_builder(name).honours_action_masks]
A = 4
BAD = 1e3
"""Value of illegal actions, far above those of legal ones."""
f = jnp.float32


def spec_of(env="fake/match", **options):
    return environments.make_spec(environments.make(env, seed=0, **options))


MASKED, PLAIN = spec_of(masked=True), spec_of()


def masks(rows, seed=0):
    """[rows, A], one action at least."""
    random = np.random.default_rng(seed)
    found = random.random((rows, A)) < 0.5
    found[np.arange(rows), random.integers(A, size=rows)] = True
    return found


def observed(values, mask):
    return {"observation": jnp.asarray(values, f), "action_mask": jnp.asarray(mask)}


# Functions.


def test_a_mask_that_allows_nothing_says_nothing():
    mask = legal_actions.of({"action_mask": np.array([[0, 0, 0], [0, 2, 0]], np.int8), "x": 1})
    assert mask.tolist() == [[True] * 3, [False, True, False]]
    assert legal_actions.of({"x": 1}) is None
    assert legal_actions.of(np.zeros(3)) is None


def test_the_best_is_the_best_of_those_that_are_legal():
    values = f([[1, 3, 2], [-5e8, 1, -4e8]])
    assert legal_actions.best(values, None).tolist() == [1, 1]
    mask = jnp.array([[True, False, True], [True, False, False]])
    assert legal_actions.best(values, mask).tolist() == [2, 0]


@pytest.mark.parametrize("mask", [[1, 0, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1]])
def test_legal_actions_are_drawn_alike(mask):
    shares = (jnp.arange(1200) + 0.5) / 1200
    drawn = jax.vmap(legal_actions.nth, (None, 0))(jnp.array(mask, bool), shares)
    counts = np.bincount(drawn, minlength=4)
    assert counts.tolist() == [1200 * x // sum(mask) for x in mask]
    last = legal_actions.nth(jnp.array(mask, bool), f(1.0 - 2.0**-24))
    assert mask[int(last)]


# Acting.


@pytest.mark.parametrize("warm_up", [False, True], ids=["epsilon", "warm-up"])
def test_what_is_drawn_is_legal_and_all_that_is_legal_is_drawn(warm_up):
    if warm_up:
        best = policies.epsilon_greedy(lambda params, seen: jnp.arange(A), 0.0)
        core = policies.uniform_first(best, MASKED.actions, 10)
    else:
        core = policies.epsilon_greedy(lambda params, seen: jnp.zeros(A), 1.0)
    mask = np.repeat([[False, True, True, False]], 400, 0)
    states = policies.begin(core, jax.random.split(jax.random.key(0), 400))
    act = jax.jit(policies.batch(core))
    action, _, states = act((), observed(np.zeros((400, A)), mask), states, np.zeros(400, bool))
    assert {*action.tolist()} == {1, 2}
    assert 150 < (action == 1).sum() < 250
    nothing = np.zeros((400, A), bool)  # Behind the end of an episode.
    action, _, _ = act((), observed(np.zeros((400, A)), nothing), states, np.zeros(400, bool))
    assert {*action.tolist()} == {0, 1, 2, 3}


# Targets.


def info(rows):
    return SampleInfo(np.zeros(rows, np.int64), np.ones(rows, "f4"), np.full(rows, 9, "f4"))


def dqn_loss(values, mask, **options):
    """The loss of transitions whose values are their observations; where a mask is None, of all."""
    config = DQNConfig(**options)
    weights = np.ones(config.num_atoms, "f4")
    if config.distribution == "categorical":  # Logits, that grow with the return.
        weights = np.linspace(0, 1, config.num_atoms, dtype="f4")

    def apply(params, observation, key=None):
        seen = params + action_masks.visible(observation)
        return seen if config.distribution == "none" else seen[..., None] * weights

    update = make_dqn_update(Network(lambda key: jnp.zeros(()), apply), config)
    rows, seen = len(values), (values, values[::-1])
    taken = np.arange(rows) % A
    if mask is not None:
        taken, seen = mask.argmax(1), map(observed, seen, (mask, mask[::-1]))
    present, following = (jax.tree.map(jnp.asarray, one) for one in seen)
    ones = np.ones(rows, "f4")
    data = Transition(present, taken.astype(np.int32), ones, ones, following)
    _, output = jax.jit(update.step)(update.init(jax.random.key(0)), Sample(info(rows), data))
    return float(output.metrics["loss"])


VARIANTS = {
    "plain": {"double": False},
    "double": {},
    "munchausen": {"double": False, "munchausen_scale": 0.9},
    "categorical": {"distribution": "categorical", "num_atoms": 11, "double": False},
    "quantile, double": {"distribution": "quantile", "num_atoms": 3},
    "quantile, munchausen": {"distribution": "quantile", "num_atoms": 3, "munchausen_scale": 0.9},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_values_of_illegal_actions_change_no_target_of_dqn(name):
    mask = masks(16)
    values = np.random.default_rng(1).normal(size=mask.shape).astype("f4")
    spoiled = np.where(mask, values, BAD)
    with_mask, without = (
        [dqn_loss(x, m, **VARIANTS[name]) for x in (values, spoiled)] for m in (mask, None)
    )
    assert with_mask[0] == pytest.approx(with_mask[1], rel=1e-5)
    assert np.isfinite(with_mask[0])
    assert abs(without[1] - without[0]) > 1e-2 * abs(without[0])


def test_the_target_of_double_q_learning_by_hand():
    """Of one legal action at t, whose value is 3: the error is 1 + 0.5 * 3 - 2."""
    values, mask = np.array([[2, 9, 9, 9], [9, 9, 9, 3]], "f4"), np.eye(A, dtype=bool)[[0, 3]]
    found = dqn_loss(values, mask, loss="squared", discount=0.5)
    errors = np.array([1 + 0.5 * 3 - 2, 1 + 0.5 * 2 - 3])
    assert found == pytest.approx(np.mean(0.5 * errors**2))


def test_values_of_illegal_actions_change_no_target_of_r2d2():
    config = R2D2Config(
        n_step=2, burn_in=0, sequence_length=5, sequence_period=5, priority_exponent=None
    )

    def unroll(params, observation, state, first, burn_in=0):
        return params + action_masks.visible(observation), state

    network = RecurrentNetwork(lambda key: jnp.zeros(()), (), unroll, None)
    update = make_r2d2_update(network, config)
    rows, steps = 3, 6
    mask = masks(rows * steps).reshape(rows, steps, A)
    values = np.random.default_rng(1).normal(size=mask.shape).astype("f4")
    extras = policies.RecurrentExtras((), ())
    ones, kinds = np.ones((rows, steps), "f4"), np.ones((rows, steps), np.int32)

    def loss(values, mask):
        seen = jnp.asarray(values) if mask is None else observed(values, mask)
        taken = np.zeros((rows, steps), int) if mask is None else mask.argmax(-1)
        data = Sequence(seen, taken.astype(np.int32), ones, ones, kinds, ones, extras)
        _, output = jax.jit(update.step)(update.init(jax.random.key(0)), Sample(info(rows), data))
        return float(output.metrics["loss"]), float(output.metrics["mean_q"])

    spoiled = np.where(mask, values, BAD)
    assert loss(values, mask) == pytest.approx(loss(spoiled, mask), rel=1e-5)
    assert loss(values, None)[0] != pytest.approx(loss(spoiled, None)[0], rel=1e-1)


# Policies.


def logits_of(name, config):
    """Logits [B, A] of the networks of an agent for observations [B, ...], and the mask."""
    builder_class = find_builder(name)
    builder = builder_class(builder_class.config_class(hidden_sizes=(8,), **config))
    networks, mask = builder.make_networks(MASKED), masks(64)
    seen = observed(np.random.default_rng(2).random((64, A)), mask)
    network = getattr(networks, "policy", None) or networks.network
    params = network.init(jax.random.key(0))
    if isinstance(network, RecurrentNetwork):
        state = jax.tree.map(lambda x: jnp.stack([x] * 64), network.initial_state)
        window = jax.tree.map(lambda x: x[:, None], seen)
        outputs, _ = network.unroll(params, window, state, np.ones((64, 1), bool))
        stepped, _ = jax.vmap(network.step, (None, 0, 0))(params, seen, state)
        outputs = jax.tree.map(lambda x: x[:, 0], outputs)
        np.testing.assert_allclose(outputs[0], stepped[0], rtol=1e-4)
    else:
        outputs = network.apply(params, seen)
    return (outputs[0] if isinstance(outputs, tuple) else outputs), mask


@pytest.mark.parametrize(
    ("name", "config"),
    [
        *(pytest.param(name, {}, id=name) for name in ("bc", "crr", "impala", "iql", "mpo", "ppo")),
        *(
            pytest.param(name, {"core": "gru", "core_size": 8}, id=f"{name} with a memory")
            for name in ("impala", "ppo")
        ),
    ],
)
def test_a_policy_is_a_distribution_over_legal_actions(name, config):
    logits, mask = logits_of(name, config)
    actions = categorical(A)
    entropy = jax.vmap(actions.entropy)(logits)
    assert (entropy <= np.log(mask.sum(1)) + 1e-5).all()
    assert (entropy[mask.sum(1) == 1] == 0).all()
    np.testing.assert_allclose(jax.nn.softmax(logits)[mask].sum(), 64, rtol=1e-5)
    assert (jax.nn.softmax(logits)[~mask] == 0).all()
    drawn = jax.vmap(actions.sample)(logits, jax.random.split(jax.random.key(0), 64))
    assert mask[np.arange(64), drawn].all()
    kl = jax.vmap(actions.kl)(logits, jnp.where(mask, 1.0, legal_actions.LEAST))
    assert np.isfinite(kl).all()
    assert (kl >= -1e-6).all()


@pytest.mark.parametrize("name", ["ppo", "ppo with a memory", "impala"])
def test_a_policy_that_acted_is_as_far_from_itself_as_nothing(name):
    """Probabilities of actions are over what was legal when they were chosen, in learning too."""
    row = AGENTS[name]
    config = {**row.config, "num_envs": 4, "rollout_length": 8}
    if row.agent == "ppo":
        config |= {"num_minibatches": 1, "num_epochs": 1}
    case = Case(row._replace(config=config), KINDS["masked"])
    with short_run.ShortRun(case.experiment()) as trial:
        trial.run(1)
        metrics = trial.parts.learner.metrics()
    assert abs(metrics["kl"]) < 1e-5
    assert 0.0 < metrics["entropy"] < np.log(A) - 0.1


@pytest.mark.parametrize("name", NAMES)
def test_a_mask_changes_no_parameter(name):
    """Networks do not see it: names and numbers are those of an environment without one."""

    def params(spec):
        builder = find_builder(name)()
        update = builder.make_update(builder.make_networks(spec), spec)
        return update.variables(update.init(jax.random.key(3)))["policy"]

    assert_same_bits(params(MASKED), params(PLAIN))


# Search.


def test_a_search_considers_legal_actions_alone():
    pytest.importorskip("mctx")
    config = MuZeroConfig(hidden_sizes=(8,), state_size=8, num_simulations=6, num_atoms=11)
    networks = make_muzero_networks(MASKED, config)
    keys = jax.random.split(jax.random.key(0), 3)
    params = type(networks)(*(n.init(k) for n, k in zip(networks, keys, strict=True)))
    search, mask = jax.jit(make_search(networks, config), static_argnums=3), masks(64)
    mask[0] = False
    seen = observed(np.random.default_rng(2).random((64, A)), mask)
    mask[0] = True
    for scale in (0.0, 1.0):
        found = search(params, seen, jax.random.key(1), scale)
        assert mask[np.arange(64), found.action].all()
        assert (found.policy[~mask] == 0).all()
        assert np.isfinite(found.value).all()


# Refusals.


class Ignores(DQNBuilder):
    """A builder that promises nothing."""

    name = "mine"
    honours_action_masks = False


def experiment(builder, env="fake/match", **options):
    def make(*, seed, num_envs, evaluation):
        return environments.make(env, seed=seed, num_envs=num_envs, **options)

    return launch.Experiment(builder, make, env, 5_000)


SMALL = {"hidden_sizes": (8,), "batch_size": 8, "min_replay_size": 16}


def test_who_ignores_masks_is_refused_in_one_line(tmp_path):
    refused = experiment(Ignores(DQNConfig(**SMALL)), masked=True)
    words = r"mine does not honour masks .* Agents that can: .*dqn.*ppo"
    with pytest.raises(RequestError, match=words) as refusal:
        launch.run(refused, tmp_path / "run")
    assert "\n" not in str(refusal.value)
    with pytest.raises(RequestError, match=words):
        dataclasses.replace(refused, network_factory=lambda spec: ()).make_networks(MASKED)
    failed = [one for one in table.check(refused) if one.status == "failed"]
    assert [one.name for one in failed] == ["networks"]
    assert "does not honour masks" in failed[0].text
    builder = refused.builder
    with pytest.raises(ValueError, match="does not honour"):
        builder.make_actor(jax.random.key(0), None, MASKED, None)
    with pytest.raises(ValueError, match="does not honour"):
        builder.make_learner(jax.random.key(0), None, MASKED, iter(()))
    builder.require_masks_honoured(PLAIN)


def test_every_agent_of_discrete_actions_honours_them_behind_wrappers_too():
    assert catalogue.driving(MASKED) == catalogue.driving(PLAIN) == sorted(NAMES)
    assert find_builder("normalized+rnd+dqn").honours_action_masks
    assert not find_builder("td3").honours_action_masks


def test_the_docs_say_who_honours_them():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "agents.md").read_text()
    section = page.split("## Legal actions")[1].split("\n## ")[0]
    rows = [row.split("|")[1:3] for row in section.splitlines() if row.startswith("| `")]
    told = {
        name: "which have no masks" not in what
        for who, what in rows
        for name in re.findall(r"`(\w+)`", who)
    }
    assert told == {name: name in NAMES for name in catalogue.AGENTS}


@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize("agent", ["sac", "ppo"])
def test_continuous_actions_cannot_be_masked(command, agent, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([command, agent, "--env", f"{walls.__name__}:Slopes-v0"]) == 2
    said = capsys.readouterr().err.strip()
    assert "action_mask masks actions that are float32[2]" in said
    assert "\n" not in said


class Forgets(DQNBuilder):
    """A builder that does not keep what it promises: it acts as if everything were legal."""

    def make_policy(self, networks, spec, **options):
        core = super().make_policy(networks, spec, **options)

        def select_action(params, observation, state):
            mask = jnp.ones_like(observation["action_mask"])
            return core.select_action(params, {**observation, "action_mask": mask}, state)

        return core._replace(select_action=select_action)


def test_check_finds_who_chooses_what_is_illegal():
    """In an environment that takes it, as Taxi does."""
    settings = {**SMALL, "epsilon_decay_steps": 10**6, "num_envs": 4}
    findings = {
        one.name: one for one in table.check(experiment(Forgets(DQNConfig(**settings)), "Taxi-v4"))
    }
    assert findings["actions"].status == "failed"
    assert "the exploring policy chose" in findings["actions"].text
    assert "and legal were [" in findings["actions"].text
    kept = table.check(experiment(DQNBuilder(DQNConfig(**settings)), "Taxi-v4"))
    assert {one.status for one in kept} == {"ok"}


# Data.


def test_data_with_an_illegal_action_is_refused():
    dataset = demonstrations.match(count=3, masked=True)
    (action,), mask = dataset.action, dataset.observation[0]
    wrong = np.array(action)
    wrong[4] = int(np.argmin(mask[4]))
    assert not mask[4].all()
    with pytest.raises(ValueError, match=f"its action {wrong[4]} at row 4 is illegal"):
        dataclasses.replace(dataset, action=[wrong])


def test_recordings_draw_legal_actions(tmp_path):
    """As do the agent and its evaluations, else the environment would end the run."""
    out = tmp_path / "run"
    settings = {"hidden_sizes": 8, "min_replay_size": 16, "batch_size": 4}
    words = ["train", "dqn", "--env", "fake/match", "--env.masked", "true", "--steps", "200"]
    words += [f"--config.{name}={value}" for name, value in settings.items()]
    assert main([*words, "--evaluation-episodes", "2", "--out", str(out)]) == 0
    shown = tmp_path / "shown.npz"
    assert main(["record", str(out), "--steps", "500", "--epsilon", "1", "--out", str(shown)]) == 0
    assert main(["evaluate", str(out), "--episodes", "3"]) == 0
    policy = launch.load_policy(out)
    environment = environments.make("fake/match", seed=9, masked=True)
    state, step = policy.init(jax.random.key(0)), environment.reset()
    while not step.last():
        action, state = policy.act(policy.parameters, step.observation, state)
        step = environment.step(action)
