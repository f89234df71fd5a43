"""What a run gives away: its best policy and its newest, to play, to call, and as one file."""

import dataclasses
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import gymnasium
import jax
import numpy as np
import pytest

from troupe import environments, launch
from troupe.agents.dqn import DQNBuilder
from troupe.agents.snapshots import to_host
from troupe.baselines.command.line import main
from troupe.baselines.settings import SETTINGS
from troupe.launch.files.best import BestPolicy
from troupe.launch.files.directory import RunDirectory
from troupe.launch.specification import imports
from troupe.launch.specification.begun import begun

RUN_EXPORTED = pathlib.Path(__file__).with_name("run_exported.py")


def run(recipe, out, **options):
    return launch.run(recipe.experiment(), out, progress=False, request=recipe.to_json(), **options)


def same(one, other):
    one, other = map(to_host, (one, other))
    assert jax.tree.structure(one) == jax.tree.structure(other)
    return all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


@pytest.fixture(scope="module")
def fallen(tiny, tmp_path_factory):
    """A run whose last policy is not its best, and its result."""
    out = tmp_path_factory.mktemp("fallen") / "run"
    result = run(tiny(seed=3, evaluation={"every": 20}), out)
    means = [one["mean"] for one in result.evaluation]
    assert means[-1] < max(means), means
    return out, result


def test_the_best_policy_is_kept_and_gives_its_return_again(fallen, capsys):
    out, result = fallen
    best = max(reversed(result.evaluation), key=lambda one: one["mean"])
    assert {name: result.best[name] for name in best} == best
    assert launch.evaluate(out, which="best").summary() == best
    assert main(["evaluate", str(out), "--best", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == best
    # Only what plays it is kept, and only of one.
    (folder,) = (out / "best").glob("checkpoint-*")
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "policy.npz"}
    # Other episodes are episodes that it was not chosen by.
    other = launch.evaluate(out, which="best", episodes=best["episodes"])
    assert other.actor_steps == best["actor_steps"]
    assert launch.evaluate(out).actor_steps == result.actor_steps != best["actor_steps"]


def test_what_is_loaded_is_what_was_learned(fallen):
    out, result = fallen
    newest, best = (launch.load_policy(out, which) for which in ("newest", "best"))
    assert newest.actor_steps == result.actor_steps
    assert newest.evaluation is None
    assert best.evaluation["mean"] == result.best["mean"]
    assert not same(newest.parameters, best.parameters)
    assert all(isinstance(name, str) for name in newest.parameters)
    observation = np.zeros(4, np.float32)
    action, state = jax.jit(newest.act)(
        newest.parameters, observation, newest.init(jax.random.key(0))
    )
    assert action.shape == ()
    assert jax.tree.structure(newest.reset(state)) == jax.tree.structure(state)
    many = jax.vmap(newest.act, (None, 0, None))
    assert many(newest.parameters, np.zeros((5, 4), np.float32), state)[0].shape == (5,)


def test_neither_replay_nor_learner_is_needed(fallen, tmp_path, monkeypatch):
    out = shutil.copytree(fallen[0], tmp_path / "run")
    expected = launch.evaluate(out, episodes=3).returns
    for path in out.glob("checkpoints/*/replay.npz"):
        path.unlink()
    monkeypatch.setattr(DQNBuilder, "make_replay_tables", None)
    assert launch.evaluate(out, episodes=3).returns == expected


def test_an_exported_policy_plays_without_troupe(fallen, tmp_path, capsys):
    pytest.importorskip("flatbuffers")
    out, _ = fallen
    file = tmp_path / "given" / "policy.zip"
    assert main(["export", str(out), "--best", "--out", str(file)]) == 0
    assert str(file) in capsys.readouterr().out
    about = json.loads(zipfile.ZipFile(file).read("policy.json"))
    assert about["observation"]["shape"] == [4]
    assert about["action"] == {"shape": [], "dtype": "int32", "num_values": 2}
    assert set(about["platforms"]) == {"cpu", "cuda", "tpu"}
    policy, seeds, expected = launch.load_policy(out, "best"), (3, 4, 5), []
    env, act = gymnasium.make("CartPole-v1"), jax.jit(policy.act)
    state = policy.init(jax.random.key(0))
    for seed in seeds:
        (observation, _), total, done = env.reset(seed=seed), 0.0, False
        while not done:
            action, state = act(policy.parameters, observation, state)
            observation, reward, terminated, truncated, _ = env.step(int(action))
            total, done = total + reward, terminated or truncated
        expected.append(total)
    assert play_exported(file, *seeds) == expected


def play_exported(file, *seeds):
    """Returns of episodes in a process that imports jax, numpy and gymnasium."""
    environment = {**os.environ, "PYTHONPATH": "", "XLA_FLAGS": ""}
    done = subprocess.run(
        [sys.executable, str(RUN_EXPORTED), str(file), "CartPole-v1", *map(str, seeds)],
        capture_output=True,
        check=False,
        text=True,
        env=environment,
        cwd=file.parent,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not os.environ.get("TROUPE_FULL"), reason="a minute; set TROUPE_FULL=1")
def test_a_policy_exported_from_a_solved_cartpole_solves_it(tmp_path):
    pytest.importorskip("flatbuffers")
    out = tmp_path / "run"
    task = ["dqn", "--env", "CartPole-v1", "--target", "475", "--stop-at-target"]
    assert main(["train", *task, "--out", str(out)], SETTINGS) == 0
    assert main(["export", str(out), "--best", "--out", str(tmp_path / "policy.zip")]) == 0
    assert np.mean(play_exported(tmp_path / "policy.zip", *range(20))) >= 475


def test_what_cannot_be_had_is_one_line(tmp_path, fallen, capsys, monkeypatch):
    pytest.importorskip("flatbuffers")
    out = shutil.copytree(fallen[0], tmp_path / "run")

    def fails(arguments, code, *words):
        assert main(arguments) == code
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert all(word in error for word in words), error

    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "flatbuffers", None)
        fails(["export", str(out)], 2, "flatbuffers", "pip install 'troupe[export]'")
    fails(["evaluate", str(tmp_path), "--best"], 2, "not a run's directory")
    fails(["export", str(tmp_path)], 2, "not a run's directory")
    (tmp_path / "file").write_text("")
    nowhere = str(tmp_path / "file" / "a.zip")
    fails(["export", str(out), "--out", nowhere], 2, "cannot write the policy")
    for name in ("policy.onnx", "policy", "zip"):
        words = (name, "must end in .zip", "jax.export")
        fails(["export", str(out), "--out", str(tmp_path / name)], 2, *words)
        assert not (tmp_path / name).exists()
    with pytest.raises(launch.RequestError, match="no 'last' policy"):
        launch.load_policy(out, "last")
    (policy,) = out.glob("best/*/policy.npz")
    policy.write_bytes(policy.read_bytes()[:-1])
    fails(["evaluate", str(out), "--best"], 1, "the best policy", "damaged")
    with pytest.raises(launch.CheckpointError, match="damaged"):
        launch.load_policy(out, "best")
    assert launch.load_policy(out)


def test_the_best_is_the_one_with_the_highest_mean(tmp_path):
    best, variables = BestPolicy(tmp_path / "best"), {"policy": {"w": np.ones(3)}}

    def offer(mean, index):
        return best.offer(variables, {"mean": mean, "index": index}, {"agent": "x"})

    assert best.held() is None
    assert [offer(mean, i) for i, mean in enumerate((2.0, 1.0, float("nan"), 2.0, 3.0, 2.5))] == [
        True,
        False,
        False,
        True,
        True,
        False,
    ]
    assert best.held().counters == {"mean": 3.0, "index": 4}
    np.testing.assert_array_equal(best.held().read("policy")["w"], np.ones(3))


# As of a module of one's own, from which builders and factories can be imported.


class OwnBuilder(DQNBuilder):
    name = "own"


def make_environment(*, seed, num_envs, evaluation):
    return environments.make("CartPole-v1", seed=seed, num_envs=num_envs)


def own_experiment(tiny, **changes):
    made = tiny(steps=100).experiment()
    return dataclasses.replace(
        made,
        **{
            "builder": OwnBuilder(made.builder.config),
            "environment_factory": make_environment,
            **changes,
        },
    )


def test_a_run_begun_in_python_goes_on_like_any_other(tiny, tmp_path, capsys):
    out, experiment = tmp_path / "run", own_experiment(tiny)
    result = launch.run(experiment, out, progress=False)
    config = RunDirectory(out).read_config()
    assert (config["agent"], config["launch"], config["steps"]) == ("own", "one-process", 100)
    assert config["python"]["builder"]["import"].endswith(":OwnBuilder")
    assert main(["evaluate", str(out), "--best", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean"] == result.best["mean"]
    assert main(["resume", str(out), "--steps", "140"]) == 0  # It plots, too.
    assert launch.load_policy(out).actor_steps == pytest.approx(140, abs=1)

    # The same run, were its environments made by a function within another.
    mine = dataclasses.replace(
        experiment, environment_factory=lambda **which: make_environment(**which)
    )
    config["python"] = begun(mine, "one-process", {}).to_json()["python"]
    assert config["python"]["environment_factory"] is None
    (out / "config.json").write_text(json.dumps(config))
    capsys.readouterr()
    assert main(["evaluate", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "environment_factory" in error
    assert "launch.resume(run, experiment)" in error
    assert launch.evaluate(out, experiment=mine, episodes=2).returns
    assert launch.load_policy(out, "best", experiment=mine).evaluation["mean"]
    with pytest.raises(launch.RequestError, match="complete"):
        launch.resume(out, mine, progress=False)


class Particular(OwnBuilder):
    """Takes more than its config."""

    def __init__(self, config=None, more=None):
        super().__init__(config)
        self.more = more


@pytest.mark.parametrize(
    ("thing", "found"),
    [
        (make_environment, True),
        (OwnBuilder, True),
        (functools.partial(make_environment, evaluation=True), True),
        (functools.partial(make_environment, evaluation=object()), False),
        (lambda: None, False),
        (functools.partial(lambda seed: None, seed=1), False),
        (environments.Vector.step, True),
        (object(), False),
    ],
)
def test_what_can_be_imported_is_found_again(thing, found):
    place = imports.where(thing)
    assert (place is not None) == found
    if place is not None:
        again = imports.find(json.loads(json.dumps(place)))
        assert getattr(again, "func", again) is getattr(thing, "func", thing)
        assert getattr(again, "keywords", {}) == getattr(thing, "keywords", {})
    with pytest.raises(launch.RequestError, match="cannot be imported"):
        imports.find({"import": "no_such_module:thing", "path": "/nowhere"})


@pytest.mark.parametrize(
    ("end", "answer"),
    [
        ("if __name__ == '__main__':\n    tell()", "[5, 'script:mine']"),
        ("tell()", "[]"),
    ],
)
def test_what_a_script_defines_is_found_where_it_may_be_imported(tmp_path, end, answer):
    script = tmp_path / "script.py"
    script.write_text(
        "from troupe.launch.specification import imports\n"
        "def mine(): return 5\n"
        "def tell():\n"
        "    place = imports.where(mine)\n"
        "    print([imports.find(place)(), place['import']] if place else [])\n" + end
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == answer


def test_a_builder_with_more_than_a_config_is_not_taken_for_one_without(tiny):
    config = tiny().experiment().builder.config
    for builder, known in ((Particular(config), True), (Particular(config, more=1), False)):
        made = begun(own_experiment(tiny, builder=builder), "one-process", {})
        assert (made.python["builder"] is not None) == known
