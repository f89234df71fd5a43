"""Training against oneself, in a compiled run, in one process and in several."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

from troupe.launch import running
from troupe.launch.compiled.run import run_population
from troupe.launch.distributed.deploy import deploy
from troupe.launch.errors import RequestError
from troupe.launch.evaluation import opponents
from troupe.launch.evaluation.checkpoint import evaluate
from troupe.launch.evaluation.opponents import OlderSelf, win_rate
from troupe.launch.evaluation.policy import load_policy
from troupe.launch.experiment import Evaluation
from troupe.launch.specification.recipe import Recipe

from .test_mesh import EXHAUSTIVE

pytest.importorskip("pgx")
PPO = Recipe(
    "ppo",
    "jax:pgx/tic_tac_toe",
    {"hidden_sizes": (8,), "num_envs": 4, "rollout_length": 8, "num_minibatches": 1},
    steps=128,
    environment={"opponent": "self"},
    evaluation=Evaluation(every=64, episodes=8, final_episodes=8),
)
POOL = {"opponent": "pool", "opponent_versions": 2, "opponent_period": 32}


def run(recipe, out, kind="compiled", **options):
    request = dataclasses.replace(recipe, launch=kind).to_json()
    launcher = running.runner(kind, {})
    return launcher(recipe.experiment(), out, progress=False, request=request, **options)


def weights(out):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(load_policy(out).parameters)])


@pytest.fixture(scope="module")
def against_random(tmp_path_factory):
    """A run whose opponent moves at random."""
    out = tmp_path_factory.mktemp("against_random") / "run"
    run(dataclasses.replace(PPO, environment={}), out)
    return out


@pytest.fixture(scope="module")
def against_a_pool(tmp_path_factory):
    """A run whose opponents are its older policies, and its result."""
    out = tmp_path_factory.mktemp("against_a_pool") / "run"
    return out, run(dataclasses.replace(PPO, environment=POOL), out)


def test_against_itself_it_learns_the_same_in_a_program_and_in_one_process(
    against_random, tmp_path
):
    for kind in ("compiled", "one-process"):
        run(PPO, tmp_path / kind, kind)
    first, second = (weights(tmp_path / kind) for kind in ("compiled", "one-process"))
    np.testing.assert_allclose(first, second, atol=2e-5)
    assert np.abs(weights(against_random) - first).max() > 1e-3


@pytest.mark.parametrize("kind", ["compiled", "one-process"])
def test_a_pool_trains_and_evaluations_count_games_won(kind, against_a_pool, tmp_path):
    if kind == "compiled":
        out, result = against_a_pool
    else:
        out = tmp_path / "run"
        result = run(dataclasses.replace(PPO, environment=POOL), out, kind)
    first, last = result.evaluation
    assert "info/win_rate_older" not in first
    for name in ("info/win_rate", "info/win_rate_older"):
        assert 0.0 <= last[name] <= 1.0
    assert np.isfinite(weights(out)).all()
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    judged = [row for row in rows if row["kind"] == "evaluation"]
    assert judged[-1]["info/win_rate"] == last["info/win_rate"]
    for opponent in (out, out / "best"):
        played = evaluate(out, episodes=6, opponent=opponent).summary()
        assert played["info/win_rate"] * 6 == pytest.approx(round(played["info/win_rate"] * 6))


def test_a_best_policy_may_be_the_opponent(tmp_path, monkeypatch):
    """Not the newest, which may have come to less since."""
    asked = []

    def learned(run, which, *_):
        asked.append((run, which))
        raise RequestError("enough")

    monkeypatch.setattr(opponents, "learned", learned)
    monkeypatch.setattr(opponents, "is_game", lambda environment: True)
    (tmp_path / "config.json").write_text("{}")
    elsewhere = tmp_path / "other" / "best"  # A run of that name.
    for given in (tmp_path, tmp_path / "best", str(tmp_path / "best"), elsewhere):
        with pytest.raises(RequestError, match="enough"):
            opponents.face_run(None, None, given, print)
    newest, best = (tmp_path, "newest"), (tmp_path, "best")
    assert asked == [newest, best, best, (elsewhere, "newest")]


@pytest.mark.long
def test_a_run_against_a_pool_goes_on_bit_for_bit(tmp_path):
    pool = dataclasses.replace(PPO, environment=POOL)
    run(dataclasses.replace(pool, steps=256), tmp_path / "whole")
    run(pool, tmp_path / "parts")
    running.resume(tmp_path / "parts", steps=256, progress=False)
    np.testing.assert_array_equal(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


OFF_POLICY = {
    **{"hidden_sizes": (8,), "num_envs": 2, "min_replay_size": 8, "batch_size": 4},
    "samples_per_insert": 4.0,
}
SEQUENCES = {"core_size": 4, "burn_in": 0, "sequence_length": 4, "sequence_period": 4, "n_step": 1}


@pytest.mark.long
@pytest.mark.parametrize(
    ("agent", "config"),
    [
        pytest.param("dqn", OFF_POLICY, marks=EXHAUSTIVE),
        ("r2d2", {**OFF_POLICY, **SEQUENCES}),
    ],
)
def test_agents_with_schedules_and_with_memories_play_too(agent, config, tmp_path):
    out = tmp_path / "run"
    recipe = dataclasses.replace(PPO, agent=agent, config=config, environment=POOL)
    result = run(recipe, out)
    assert result.learner_steps > 0
    assert 0.0 <= result.evaluation[-1]["info/win_rate_older"] <= 1.0
    assert np.isfinite(weights(out)).all()


@pytest.mark.long
def test_several_runs_of_one_program_have_pools_of_their_own(against_a_pool, tmp_path):
    alone, _ = against_a_pool
    recipes = [dataclasses.replace(PPO, environment=POOL, seed=seed) for seed in (1, PPO.seed)]
    outs = [tmp_path / str(one.seed) for one in recipes]
    results = run_population(
        [one.experiment() for one in recipes], outs, requests=[one.to_json() for one in recipes]
    )
    assert [one.episodes > 0 for one in results] == [True, True]
    np.testing.assert_allclose(weights(outs[1]), weights(alone), atol=2e-4)
    assert np.abs(weights(outs[0]) - weights(outs[1])).max() > 1e-2


@pytest.mark.long
def test_over_a_mesh_it_learns_what_it_learns_on_one_device(against_a_pool, tmp_path):
    alone, _ = against_a_pool
    run(dataclasses.replace(PPO, environment=POOL, mesh="data=4"), tmp_path / "run")
    np.testing.assert_allclose(weights(tmp_path / "run"), weights(alone), atol=2e-4)


@pytest.mark.long
@pytest.mark.parametrize("servers", [0, 1])
def test_actors_of_other_processes_play_against_what_the_learner_publishes(servers, tmp_path):
    pytest.importorskip("ray")
    roles = {"actors": 2, "inference_servers": servers}
    recipe = dataclasses.replace(PPO, environment=POOL, steps=512, launch="ray", roles=roles)
    recipe = dataclasses.replace(recipe, evaluation=dataclasses.replace(PPO.evaluation, every=128))
    out = tmp_path / "run"
    result = running.runner("ray", roles)(
        recipe.experiment(), out, progress=False, request=recipe.to_json()
    )
    assert 500 <= result.actor_steps <= 512
    assert result.learner_steps > 0
    *earlier, last = result.evaluation  # None before the last, where evaluators began late.
    assert 0.0 <= last["info/win_rate"] <= 1.0
    assert ("info/win_rate_older" in last) == bool(earlier)
    assert 0.0 <= last.get("info/win_rate_older", 0.0) <= 1.0
    assert np.isfinite(weights(out)).all()


def test_the_policy_of_another_run_trains_the_same_in_a_program_and_in_one_process(
    against_random, tmp_path
):
    other = tmp_path / "other"
    dqn = dataclasses.replace(PPO, agent="dqn", config=OFF_POLICY, environment={})
    run(dqn, other, "one-process")
    for kind, opponent in (("compiled", other / "best"), ("one-process", other / "best")):
        result = run(
            dataclasses.replace(PPO, environment={"opponent": str(opponent)}), tmp_path / kind, kind
        )
        assert 0.0 <= result.evaluation[-1]["info/win_rate"] <= 1.0
    first, second = (weights(tmp_path / kind) for kind in ("compiled", "one-process"))
    np.testing.assert_allclose(first, second, atol=2e-5)
    assert np.abs(weights(against_random) - first).max() > 1e-3
    # Whoever judges the policy later needs no opponent of its training.
    shutil.rmtree(other)
    assert len(evaluate(tmp_path / "compiled", episodes=4).returns) == 4


@pytest.mark.long
def test_actors_of_other_processes_play_against_another_run(against_random, tmp_path):
    pytest.importorskip("ray")
    roles = {"actors": 2}
    recipe = dataclasses.replace(
        PPO,
        environment={"opponent": str(against_random / "best")},
        launch="ray",
        roles=roles,
    )
    result = running.runner("ray", roles)(
        recipe.experiment(), tmp_path / "run", progress=False, request=recipe.to_json()
    )
    assert result.learner_steps > 0
    assert np.isfinite(weights(tmp_path / "run")).all()


def test_an_opponent_that_is_no_run_is_named_before_any_actor_starts(tmp_path):
    opponent = str(tmp_path / "nowhere")
    experiment = dataclasses.replace(PPO, environment={"opponent": opponent}).experiment()
    with pytest.raises(RequestError, match="nowhere"):
        deploy(experiment, tmp_path / "run", actors=2)


def test_a_policy_that_is_spread_cannot_be_each_actors_opponent(tmp_path):
    roles = {"inference_servers": 1, "inference_mesh": "data=2", "inference_schedule": "batch:data"}
    with pytest.raises(RequestError, match="leave out --inference-mesh"):
        deploy(PPO.experiment(), tmp_path / "run", **roles)


def test_an_opponent_is_of_games_alone(tmp_path):
    other = dataclasses.replace(
        PPO, env="jax:Catch-v0", environment={}, steps=32, evaluation=Evaluation(final_episodes=1)
    )
    run(other, tmp_path / "run", "one-process")
    with pytest.raises(RequestError, match="games of two"):
        evaluate(tmp_path / "run", episodes=1, opponent=tmp_path / "run")


def test_the_older_policy_is_one_of_a_quarter_to_half_of_the_evaluations():
    older, found = OlderSelf(), []
    for number in range(1, 18):
        found.append(older.of(number))
        older.hold(number, number)
    assert found == [None, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4, 4, 4, 8, 8]


def test_a_draw_is_not_won():
    assert win_rate([1.0, 0.0, -1.0, 2.0]) == 0.5
