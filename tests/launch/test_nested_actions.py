"""Nests of actions in runs: from Gymnasium, dm_env and JAX, learned, judged and exported."""

import dataclasses
import json
import zipfile

import jax
import numpy as np
import pytest
from jax import export

from troupe import environments, launch
from troupe.agents import find_builder
from troupe.baselines.command.line import main
from troupe.environments import Conform, Vector, make_spec
from troupe.launch import running
from troupe.launch.experiment import Evaluation
from troupe.launch.specification.recipe import Recipe

from ..environments import aims

BEST = float(aims.LENGTH)
ENV = f"{aims.__name__}:Aim-v0"
IN_JAX = f"jax:{aims.__name__}:aim"
PPO = {
    **{"hidden_sizes": (32,), "rollout_length": 16, "discount": 0.0, "learning_rate": 1e-2},
    **{"num_envs": 8, "entropy_cost": 1e-3},
}


def train(out, env, launched="one-process", **changes):
    settings = {"agent": "ppo", "config": PPO, "steps": 4_000, **changes}
    judged = Evaluation(every=10**6, final_episodes=10)
    recipe = Recipe(settings.pop("agent"), env, evaluation=judged, launch=launched, **settings)
    run = running.runner(launched, {})
    result = run(recipe.experiment(), out, request=recipe.to_json(), progress=False)
    return result.evaluation[-1]["mean"]


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """The directory of a run on the task of Gymnasium's."""
    out = tmp_path_factory.mktemp("learned") / "run"
    assert train(out, ENV) >= 0.9 * BEST
    return out


def test_a_run_on_a_gymnasium_dict_is_judged_again_by_its_directory(learned, capsys):
    assert main(["evaluate", str(learned), "--episodes", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean"] >= 0.9 * BEST


def test_its_policy_is_exported_with_the_nest(learned, tmp_path):
    file = tmp_path / "policy.zip"
    assert main(["export", str(learned), "--out", str(file)]) == 0
    with zipfile.ZipFile(file) as archive:
        about = json.loads(archive.read("policy.json"))
        init, act = (
            export.deserialize(bytearray(archive.read(name))).call for name in ("init", "act")
        )
    assert {*about["action"]} == {"turn", "keys", "flags"}
    assert about["action"]["turn"][0]["num_values"] == 3
    environment = environments.make(ENV, seed=4, actions="clip")
    state, step, total = init(np.uint32(0)), environment.reset(), 0.0
    while not step.last():
        action, state = act(step.observation, state)
        step = environment.step(jax.tree.map(np.asarray, action))
        total += step.reward
    assert total >= 0.9 * BEST


def test_it_is_recorded_and_imitated(learned, tmp_path):
    shown = tmp_path / "shown.npz"
    assert main(["record", str(learned), "--steps", "600", "--out", str(shown)]) == 0
    bc = {"hidden_sizes": (32,), "batch_size": 32, "learning_rate": 1e-2, "steps_per_dispatch": 8}
    copied = train(tmp_path / "run", ENV, agent="bc", config=bc, steps=400, data=str(shown))
    assert copied >= 0.9 * BEST


def test_a_compiled_run_learns_it_in_jax(tmp_path):
    assert train(tmp_path / "run", IN_JAX, "compiled") >= 0.9 * BEST


def test_what_is_written_in_jax_is_stepped_from_python_too():
    with environments.make(IN_JAX, seed=0, num_envs=3) as vector:
        seen = vector.reset().observation["shown"]
        turn = (seen, np.float32(seen - 1)[:, None])
        flags = np.stack([seen & 1, seen >> 1], axis=1).astype(np.int8)
        action = {"turn": turn, "keys": np.stack([seen, 0 * seen], axis=1), "flags": flags}
        np.testing.assert_allclose(vector.step(action).reward, 1.0)
        with pytest.raises(environments.InvalidActionError, match="keys must be int32"):
            vector.step({**action, "keys": action["keys"] + 2})


def test_mpo_learns_the_nest_of_a_dm_env(tmp_path):
    def factory(*, seed, num_envs, evaluation):
        made = [aims.AimOfDM(seed + i) for i in range(num_envs)]
        return Vector([Conform(one, name="aim", actions="clip") for one in made])

    spec = make_spec(factory(seed=0, num_envs=1, evaluation=False))
    assert isinstance(spec.actions["turn"], tuple)
    assert [x.dtype for x in spec.actions["turn"]] == [np.int32, np.float32]
    mpo = find_builder("mpo")
    config = mpo.config_class(
        **{"hidden_sizes": (32,), "min_replay_size": 200, "discount": 0.0, "batch_size": 64},
        **{"learning_rate": 3e-3, "n_step": 1, "num_samples": 8, "samples_per_insert": 16.0},
        **{"target_update_period": 20, "epsilon_mean": 0.05, "random_steps": 100},
    )
    judged = Evaluation(every=10**6, final_episodes=10)
    experiment = launch.Experiment(mpo(config), factory, "aim", 4_000, evaluation=judged)
    # Some places more than others, as four leaves are weighed by one value.
    assert launch.run(experiment, tmp_path, progress=False).evaluation[-1]["mean"] >= 0.85 * BEST


def test_who_does_not_drive_it_names_who_does(learned, capsys):
    assert main(["check", "td3", "--env", ENV]) == 1
    words = "td3 drives a box of real numbers with finite bounds; this environment's actions are a"
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if words in line]
    assert "Agents that can: bc, crr, impala, iql, mpo, ppo." in line
    experiment = dataclasses.replace(
        Recipe("sac", ENV, {}, steps=100).experiment(), evaluation=Evaluation(final_episodes=1)
    )
    with pytest.raises(launch.RequestError, match=r"sac drives one .* Agents that can: .*ppo\."):
        launch.run(experiment, learned.parent / "refused")
