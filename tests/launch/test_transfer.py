"""Runs that begin with what another has learned, and what is read of a learner."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from troupe import launch
from troupe.baselines.command.line import main
from troupe.baselines.report import again
from troupe.launch import running, transfer
from troupe.launch.errors import RequestError
from troupe.launch.evaluation.learner import best_policy, load_learner
from troupe.launch.evaluation.loading import learned
from troupe.launch.files.checkpoints import Store
from troupe.launch.files.directory import RunDirectory
from troupe.launch.logging.report import Reporter
from troupe.launch.specification.recipe import Recipe


@pytest.fixture(scope="module")
def source(tmp_path_factory, tiny):
    """The directory of a run that has learned a little."""
    out = tmp_path_factory.mktemp("source") / "run"
    recipe = tiny(steps=200)
    running.runner("one-process", {})(
        recipe.experiment(), out, progress=False, request=recipe.to_json()
    )
    return out


def begun(recipe, out, **origin):
    """The arrays of a learner at the begin of a run with the weights of another."""
    recipe = dataclasses.replace(recipe, origin=dataclasses.asdict(transfer.Origin(**origin)))
    assert transfer.begin_if_asked(recipe, out, Reporter())
    return load_learner(out).arrays


def anew(recipe):
    """The arrays of a learner that begins by itself."""
    from troupe.launch import seeds
    from troupe.launch.evaluation import learner

    experiment = recipe.experiment()
    _, _, update = learner.parts(experiment)
    return learner.name_arrays(
        update.init(jax.random.key(seeds.derive(experiment.seed, "learner")))
    )


def test_a_learner_is_loaded_with_named_arrays(source):
    found = launch.load_learner(source)
    assert {"params/head/w", "target_params/head/w", "steps"} < {*found.arrays}
    assert any(name.startswith("optimizer/") for name in found.arrays)
    assert found.learner_steps > 0
    policy = launch.load_policy(source).parameters
    for one, other in zip(
        jax.tree.leaves(found.variables["policy"]), jax.tree.leaves(policy), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    state, _ = jax.eval_shape(found.update.step, found.state, _batch(found))
    assert jax.tree.structure(state) == jax.tree.structure(found.state)


def _batch(found):
    """Shapes of a batch, as the update takes it."""
    from troupe.agents.dqn import DQNBuilder, DQNConfig
    from troupe.agents.programs import dispatch
    from troupe.agents.replay.shapes import sample_shapes

    builder = DQNBuilder(DQNConfig(batch_size=4))
    return dispatch.on_device(sample_shapes(builder.make_replay_spec(found.spec), found.spec, ()))


def test_all_that_was_learned_is_taken(source, tmp_path, tiny):
    mine = begun(tiny(seed=7), tmp_path / "run", run=str(source))
    theirs = load_learner(source).arrays
    assert mine.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_array_equal(mine[name], array, err_msg=name)
    result = launch.resume(tmp_path / "run", progress=False)
    assert result.seed == 7
    assert 195 < result.actor_steps <= 202
    assert result.learner_steps > 0
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(
            load_learner(tmp_path / "run").arrays["params/head/w"], theirs["params/head/w"]
        )


def test_some_of_it_in_another_environment(source, tmp_path, tiny):
    recipe = tiny(env="Acrobot-v1", seed=3)
    with pytest.raises(RequestError, match=r"float32\[2\] there and float32\[3\] here"):
        begun(recipe, tmp_path / "none", run=str(source))
    assert not (tmp_path / "none").exists()
    only = ("params/mlp/*/b", "target_params/mlp/*/b")
    mine, theirs = begun(recipe, tmp_path / "run", run=str(source), only=only), anew(recipe)
    given = load_learner(source).arrays
    taken = {name for name in mine if name.startswith(("params/mlp", "target_params/mlp"))}
    taken = {name for name in taken if name.endswith("/b")}
    assert len(taken) == 2
    for name, array in mine.items():
        expected = given[name] if name in taken else theirs[name]
        np.testing.assert_array_equal(array, expected, err_msg=name)


def test_the_best_policy_with_its_targets(source, tmp_path, tiny):
    recipe = tiny(seed=3)
    mine, theirs = begun(recipe, tmp_path / "run", run=str(source), best=True), anew(recipe)
    best = best_policy(learned(source, "best", None, pytest.fail))
    for name, array in mine.items():
        of = name.removeprefix("target_")
        np.testing.assert_array_equal(array, best.get(of, theirs[name]), err_msg=name)


def test_a_run_knows_what_it_began_with(source, tmp_path, capsys):
    short = ["--steps", "60", "--config.hidden_sizes", "8", "--config.min_replay_size", "16"]
    short += ["--config.batch_size", "4", "--config.max_replay_size", "500"]
    short += ["--config.samples_per_insert", "2", "--evaluate-every", "60"]
    out = tmp_path / "run"
    arguments = ["train", "dqn", "--env", "CartPole-v1", *short, "--from", str(source)]
    assert main([*arguments, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert f"begins with 18 of 18 arrays of the learner from {source}" in printed
    origin = json.loads((out / "config.json").read_text())["origin"]
    assert origin == {"run": str(source), "best": False, "only": []}
    assert main([*arguments, "--out", str(tmp_path / "several"), "--seeds", "2"]) == 0
    config = json.loads((out / "config.json").read_text())
    assert f"--from {source}" in again.command(config, [0])
    for seed in ("0", "1"):
        store = Store(RunDirectory(tmp_path / "several" / seed).checkpoints)
        assert store.newest(pytest.fail).counters["resumed"] == 0


@pytest.mark.long
def test_every_launch_in_this_process_begins_so(source, tmp_path):
    recipe = Recipe(
        "dqn",
        "jax:CartPole-v1",
        dict(json.loads((source / "config.json").read_text())["config"]),
        steps=100,
        launch="compiled",
        origin={"run": str(source)},
    )
    out = tmp_path / "run"
    assert transfer.begin_if_asked(recipe, out, Reporter())
    experiment = recipe.experiment()
    compiled = running.runner("compiled", {})
    result = compiled(experiment, out, resume=True, progress=False, request=recipe.to_json())
    assert result.launch == "compiled"
    assert 97 <= result.actor_steps <= 102


def test_what_there_is_is_listed(source, capsys):
    assert main(["weights", str(source)]) == 0
    printed = capsys.readouterr().out
    assert "params/head/w" in printed
    assert "18 arrays" in printed
    assert main(["weights", str(source), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"name": "params/head/w", "dtype": "float32", "shape": [8, 2]} in found["arrays"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--from-only", "params/*"], "--from-only says what to take"),
        (["--best"], "name it with --from"),
        (["--from", "nowhere"], "nowhere"),
        (["--from", "SOURCE", "--from-only", "no/such*"], "`troupe weights"),
        (["--from", "SOURCE", "--config.dueling", "true"], "do not fit"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(source, tmp_path, capsys, arguments, words):
    arguments = [str(source) if one == "SOURCE" else one for one in arguments]
    out = tmp_path / "run"
    task = ["train", "dqn", "--env", "CartPole-v1", "--config.hidden_sizes", "8"]
    assert main([*task, *arguments, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_a_policy_is_judged_elsewhere(source, capsys):
    evaluate = ["evaluate", str(source), "--episodes", "2", "--json"]
    assert main([*evaluate, "--env.max_episode_steps", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["max"] == 5
    assert main([*evaluate, "--env", "jax:CartPole-v1"]) == 0
    assert json.loads(capsys.readouterr().out)["max"] > 5
    assert main([*evaluate, "--best", "--env.max_episode_steps", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["max"] == 4
    assert main([*evaluate, "--env", "Acrobot-v1"]) == 2
    assert "cannot act in Acrobot-v1" in capsys.readouterr().err
    assert main([*evaluate, "--env", "jax:CartPole-v1", "--render"]) == 2
    assert "takes no render_mode" in capsys.readouterr().err
    assert main([*evaluate, "--render", "--video", "film.gif"]) == 2
    assert "leave one out" in capsys.readouterr().err
    assert main([*evaluate, "--config.hidden_sizes", "3"]) == 2
    assert "belongs to a new run" in capsys.readouterr().err
