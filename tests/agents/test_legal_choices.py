"""Masks of several choices at once (MultiDiscrete), one for each of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe import environments
from troupe.agents import legal_actions
from troupe.agents.acting import policies
from troupe.agents.networks.distributions import for_actions
from troupe.baselines.command.line import main
from troupe.environments import action_masks
from troupe.launch import running
from troupe.launch.experiment import Evaluation
from troupe.launch.mistakes import Mistake
from troupe.launch.specification.recipe import Recipe
from troupe.launch.validation.policies import check_legal

from .. import demonstrations
from ..environments import walls
from .rows import IMPALA, MPO, PPO

ENV = f"{walls.__name__}:Locks-v0"
SPEC = environments.make_spec(environments.make(ENV, seed=0))
MASK = np.array([1, 0, 1, 0, 1], bool)
BEST = 10.0


def seen(mask, leading=()):
    shown = np.zeros(leading, np.int32)
    return {"observation": shown, "action_mask": np.broadcast_to(mask, (*leading, 5))}


def test_each_choice_is_among_its_own_legal_values():
    family = for_actions("ppo", SPEC.actions)
    logits = legal_actions.restrict(jnp.arange(5.0), jnp.asarray(MASK))
    keys = jax.random.split(jax.random.key(0), 500)
    drawn = np.asarray(jax.vmap(family.sample, (None, 0))(logits, keys))
    assert {*map(tuple, drawn.tolist())} == {(0, 1), (2, 1)}
    # Of the first choice e^0 and e^2 are left, of the second one value.
    by_hand = 2.0 - np.log(1.0 + np.exp(2.0))
    assert float(family.log_prob(logits, jnp.int32([2, 1]))) == pytest.approx(by_hand, rel=1e-5)
    p = np.exp([by_hand, by_hand - 2.0])
    assert float(family.entropy(logits)) == pytest.approx(-(p * np.log(p)).sum(), rel=1e-4)
    assert family.mode(logits).tolist() == [2, 1]


def test_where_no_value_of_a_choice_is_legal_it_is_still_one_of_its_values():
    """At the end of an episode, where what is done does not matter."""
    family = for_actions("ppo", SPEC.actions)
    logits = legal_actions.restrict(jnp.zeros(5), jnp.array([1, 0, 1, 0, 0], bool))
    keys = jax.random.split(jax.random.key(0), 500)
    drawn = np.asarray(jax.vmap(family.sample, (None, 0))(logits, keys))
    assert {*drawn[:, 1].tolist()} <= {0, 1}
    assert {*drawn[:, 0].tolist()} == {0, 2}
    assert np.isfinite(jax.vmap(family.log_prob, (None, 0))(logits, drawn)).all()


def test_first_actions_are_drawn_among_legal_ones():
    illegal = policies.drawn(lambda params, observation, key: (jnp.int32([1, 0]), ()))
    core = policies.uniform_first(illegal, SPEC.actions, 300)
    state, found = core.init(jax.random.key(0)), []
    step = jax.jit(core.select_action)
    for _ in range(301):
        action, state = step((), seen(MASK), state)
        found.append(tuple(action.tolist()))
    assert {*found[:300]} == {(0, 1), (2, 1)}
    assert found[300] == (1, 0)
    assert np.mean([one == (0, 1) for one in found[:300]]) == pytest.approx(0.5, abs=0.1)


def test_check_names_what_was_illegal():
    check_legal(np.array([[2, 1]]), SPEC.actions, seen(MASK, (1,)), "exploring")
    with pytest.raises(Mistake, match=r"chose \[1, 1\], and legal were \[\[0, 2\], \[1\]\]"):
        check_legal(np.array([[1, 1]]), SPEC.actions, seen(MASK, (1,)), "exploring")


def test_data_with_an_illegal_choice_is_refused():
    dataset = demonstrations.drawn(ENV, count=3)
    (action,), (mask, _) = dataset.action, dataset.observation
    row = int(np.flatnonzero(~mask[:9, :3].all(axis=1))[0])
    wrong = np.array(action)
    wrong[row, 0] = int(np.argmin(mask[row, :3]))
    with pytest.raises(ValueError, match=rf"its action \[\d, \d\] at row {row} is illegal"):
        dataclasses.replace(dataset, action=(wrong,))


@pytest.mark.parametrize(
    ("agent", "config"),
    [("ppo", PPO), ("mpo", {**MPO, "random_steps": 200}), ("impala", IMPALA)],
)
def test_it_is_learned_without_an_illegal_action(agent, config, tmp_path):
    judged = Evaluation(every=10**6, final_episodes=10)
    recipe = Recipe(agent, ENV, config, steps=4_000, evaluation=judged)
    run = running.runner("one-process", {})
    result = run(recipe.experiment(), tmp_path / "run", request=recipe.to_json(), progress=False)
    assert result.evaluation[-1]["mean"] >= 0.9 * BEST
    if agent == "ppo":
        shown = str(tmp_path / "shown.npz")
        words = ["record", str(tmp_path / "run"), "--steps", "200", "--epsilon", "1"]
        assert main([*words, "--out", shown]) == 0


def test_it_is_checked(capsys):
    tiny = ["--config.hidden_sizes", "8", "--config.num_envs", "2", "--config.rollout_length", "8"]
    assert main(["check", "ppo", "--env", ENV, *tiny]) == 0, capsys.readouterr().out
    assert action_masks.find(SPEC.observations).shape == (5,)
