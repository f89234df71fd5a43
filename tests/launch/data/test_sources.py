"""Where data may come from, and every way in which it may be wrong: one line, exit code 2."""

import json
import pathlib
import sys

import jax
import numpy as np
import pytest

from troupe import environments, launch
from troupe.agents import find_builder
from troupe.agents.replay.offline import Episode, of_episodes
from troupe.baselines.command.line import main
from troupe.launch.data import from_minari, recording, sources
from troupe.launch.files import npz, specs

from ... import demonstrations
from ...environments import aims

TRAIN = ["train", "bc", "--env", "fake/match", "--steps", "20", "--config.hidden_sizes", "8"]
SPEC = environments.make_spec(environments.make("fake/match", seed=0))


def fails(capsys, arguments, *words):
    """Asserts that a command ends with 2 and one line that has the words in it."""
    assert main(list(map(str, arguments))) == 2
    error = capsys.readouterr().err
    assert error.startswith("troupe: ")
    assert error.count("\n") == 1, error
    for word in words:
        assert word in error, error


def content(**changes):
    """What the file of a recording holds, some of it changed."""
    found = demonstrations.match(3)
    arrays = {
        "observation": found.observation,
        "action": found.action,
        "reward": found.reward,
        "discount": found.discount,
        "step_type": found.step_type,
    }
    described = {"observations": specs.encode(found.observations)}
    described["actions"] = specs.encode(found.actions)
    head = {"kind": "troupe recording", "format": 1, "about": {}}
    return {**head, **described, **arrays, **changes}


def write(path, found):
    with open(path, "wb") as file:
        npz.write(file, found)


def test_a_recording_is_read_as_it_was_written(tmp_path, monkeypatch):
    found = demonstrations.match(5, continuous=True)
    recording.write(tmp_path / "it.npz", found, {"agent": "somebody"})
    assert recording.read(tmp_path / "it.npz").fingerprint == found.fingerprint
    monkeypatch.setattr(recording, "_MAPPED_BYTES", 1)
    mapped = recording.read(tmp_path / "it.npz")
    assert isinstance(mapped.observation[0], np.memmap)
    assert (mapped.observations, mapped.actions) == (found.observations, found.actions)
    for name in ("observation", "action"):
        for one, other in zip(getattr(mapped, name), getattr(found, name), strict=True):
            np.testing.assert_array_equal(one, other)
    assert mapped.fingerprint == found.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["it.npz"]


@pytest.mark.parametrize("env", ["fake/nested", "fake/image", "fake/ragged", "Pendulum-v1"])
def test_specs_of_every_kind_are_written_and_read(tmp_path, env):
    spec = environments.make_spec(environments.make(env, seed=0))
    for one in (spec.observations, spec.actions):
        write(tmp_path / "spec.npz", specs.encode(one))
        with open(tmp_path / "spec.npz", "rb") as file:
            assert specs.decode(npz.read(file)) == one


def nan(found):
    array = np.array(found)
    array[4] = np.nan
    return array


def none():
    found = content()
    change = {name: tuple(array[:0] for array in found[name]) for name in ("observation", "action")}
    outcomes = {name: found[name][:0] for name in ("reward", "discount", "step_type")}
    return content(**change, **outcomes)


BAD = {
    "NaN observations": (lambda: content(observation=(nan(content()["observation"][0]),)), "row 4"),
    "NaN rewards": (lambda: content(reward=nan(content()["reward"])), "reward at row 4 is nan"),
    "an action that there is not": (
        lambda: content(action=(content()["action"][0] + 3,)),
        "action at row",
    ),
    "actions of another dtype": (
        lambda: content(action=(content()["action"][0].astype(np.float32),)),
        "action is float32[] where its spec says int32[]",
    ),
    "no transition": (none, "holds no transition"),
    "rows missing": (lambda: content(discount=content()["discount"][:-2]), "rows"),
    "episodes cut": (lambda: content(step_type=np.ones(51, np.int32)), "no whole episodes"),
    "another format": (lambda: content(format=2), "has format 2"),
    "another file of npz": (lambda: {"weights": np.zeros(3)}, "no recording"),
    "a list": (lambda: [1, 2, 3], "no recording"),
    "no rewards": (lambda: {k: v for k, v in content().items() if k != "reward"}, "'reward'"),
    "no spec": (lambda: content(actions={"shape": [1]}), "damaged, or no recording"),
}


@pytest.mark.parametrize("case", BAD)
def test_files_that_cannot_be_learned_from_are_refused(tmp_path, capsys, case):
    make, words = BAD[case]
    write(tmp_path / "bad.npz", make())
    out = tmp_path / "run"
    fails(capsys, [*TRAIN, "--data", tmp_path / "bad.npz", "--out", out], "bad.npz", words)
    assert not out.exists()


def test_torn_files_are_refused(tmp_path, capsys):
    recording.write(tmp_path / "it.npz", demonstrations.match(3), {})
    whole = (tmp_path / "it.npz").read_bytes()
    torn = tmp_path / "torn.npz"
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        torn.write_bytes(whole[:size])
        with pytest.raises(launch.RequestError, match=r"torn.npz is damaged, or no recording"):
            sources.load(torn, SPEC)
    flipped = bytearray(whole)
    flipped[300] ^= 0xFF
    torn.write_bytes(flipped)
    fails(capsys, [*TRAIN, "--data", torn, "--out", tmp_path / "run"], "damaged")


def test_sources_that_are_not_there_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    for name in ("no/such-v0", tmp_path / "none.npz"):
        fails(capsys, [*TRAIN, "--data", name], f"no data at {name}", "troupe record", "Minari")
    fails(capsys, [*TRAIN, "--data", "minari:no-v0"], "no Minari dataset 'no-v0'", "there are none")
    fails(capsys, [*TRAIN, "--data", tmp_path], "no data at")
    fails(capsys, TRAIN, "bc learns from data alone", "--data")
    text = ["train", "bc", "--env", "tokens:reverse", "--out", tmp_path / "text"]
    fails(capsys, text, "bc learns from data alone", "train grpo", "--config.supervised_steps")
    assert not (tmp_path / "minari").exists()


def test_agents_and_budgets_that_data_does_not_suit_are_refused(tmp_path, capsys):
    recording.write(tmp_path / "it.npz", demonstrations.match(3), {})
    data = ["--data", tmp_path / "it.npz", "--out", tmp_path / "run"]
    fails(capsys, ["train", "ppo", "--env", "fake/match", *data], "rollouts of its own policy")
    fails(
        capsys,
        [*TRAIN, *data, "--steps", "25"],
        "25 gradient steps",
        "no multiple of the 10",
        "20 or 30",
    )
    other = ["train", "bc", "--env", "CartPole-v1", *data]
    fails(capsys, other, "another environment", "one of 4, those here one of 2")
    prioritised = ["train", "dqn", "--env", "fake/match", "--config.priority_exponent", "0.5"]
    fails(capsys, [*prioritised, "--steps", "16", *data], "priority_exponent")


@pytest.mark.distributed
def test_actors_beside_data_alone_are_refused(tmp_path, capsys):
    pytest.importorskip("launchpad")
    recording.write(tmp_path / "it.npz", demonstrations.match(3), {})
    actors = ["--launch", "processes", "--actors", "2"]
    asked = [*TRAIN, "--data", tmp_path / "it.npz", "--out", tmp_path / "run", *actors]
    fails(capsys, asked, "actors is 2", "nobody")


def test_python_says_the_same(tmp_path):
    builder = find_builder("bc")()
    arguments = builder, environments.make, "fake/match"
    with pytest.raises(launch.RequestError, match="has a budget in num_learner_steps"):
        launch.Experiment(*arguments, 100, data="it.npz")
    with pytest.raises(launch.RequestError, match="without data has a budget in num_actor_steps"):
        launch.Experiment(*arguments, num_learner_steps=100)
    with pytest.raises(launch.RequestError, match="bc learns from data alone"):
        launch.run(launch.Experiment(*arguments, 100), tmp_path / "run")


# Minari.


@pytest.fixture
def minari_root(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def write_minari(name, count=3):
    """Perfect play of `fake/match` by Minari, with the 64 bits that Gymnasium's spaces have."""
    from gymnasium import spaces

    environment = environments.make("fake/match", seed=3)
    played = [
        one._replace(
            observation=one.observation.astype(np.float64), action=one.action.astype(np.int64) + 5
        )
        for one in demonstrations.episodes(environment, count)
    ]
    there = spaces.Box(0.0, 1.0, (4,), np.float64), spaces.Discrete(4, start=5)
    demonstrations.write_minari(name, played, *there)


def test_a_minari_dataset_is_what_was_played(minari_root):
    write_minari("match/expert-v0")
    expected = of_episodes(
        SPEC.observations,
        SPEC.actions,
        demonstrations.episodes(environments.make("fake/match", seed=3), 3),
        "play",
    )
    path = minari_root / "match" / "expert-v0"
    assert from_minari.names() == ["match/expert-v0"]
    for source in ("match/expert-v0", "minari:match/expert-v0", path, path / "data"):
        found = sources.load(source, SPEC)
        assert found.fingerprint == expected.fingerprint
        np.testing.assert_array_equal(found.observation[0], expected.observation[0])
        np.testing.assert_array_equal(found.discount, expected.discount)


def test_a_minari_dataset_of_nested_actions_is_what_was_played(minari_root, tmp_path):
    """By `aims.Aim`, whose actions are a Dict of a Tuple, a MultiDiscrete and a MultiBinary."""
    task, episodes, played = aims.Aim(), [], []
    task.action_space.seed(0)
    for seed in range(2):
        seen, rewards, over = [task.reset(seed=seed)[0]], [], False
        while not over:
            played.append(task.action_space.sample())
            observation, reward, over, *_ = task.step(played[-1])
            seen.append(observation)
            rewards.append(reward)
        observations, actions = (
            jax.tree.map(lambda *x: np.stack(x), *each) for each in (seen, played[-len(rewards) :])
        )
        goes_on = np.arange(len(rewards), 0, -1) > 1
        episodes.append(Episode(observations, actions, np.array(rewards), goes_on.astype(float)))
    spaces = task.observation_space, task.action_space
    demonstrations.write_minari("aim/drawn-v0", episodes, *spaces)
    env = f"{aims.__name__}:Aim-v0"
    spec = environments.make_spec(environments.make(env, seed=0, actions="clip"))
    found = sources.load("aim/drawn-v0", spec)
    acted = found.step_type != 2
    flags, keys, choice, push = (leaf[acted] for leaf in found.action)
    assert [leaf.dtype for leaf in found.action] == [np.int8, np.int32, np.int32, np.float32]
    np.testing.assert_array_equal(flags, [one["flags"] for one in played])
    np.testing.assert_array_equal(keys, [one["keys"] for one in played])
    np.testing.assert_array_equal(choice, [one["turn"][0] - 4 for one in played])
    np.testing.assert_allclose(push, [one["turn"][1] for one in played], rtol=1e-6)
    words = ["train", "bc", "--env", env, "--data", "aim/drawn-v0", "--steps", "10"]
    words += ["--config.hidden_sizes", "8", "--config.batch_size", "4"]
    assert main([*words, "--evaluation-episodes", "1", "--out", str(tmp_path / "run")]) == 0


def test_minari_datasets_that_cannot_be_learned_from_are_refused(minari_root, capsys):
    write_minari("match/small-v0")
    out = ["--out", minari_root / "run"]
    cartpole = ["train", "bc", "--env", "CartPole-v1", "--data", "match/small-v0", *out]
    fails(capsys, cartpole, "Minari's match/small-v0", "one of 4, those here one of 2")
    data = minari_root / "match" / "small-v0" / "data"
    torn = (data / "main_data.hdf5").read_bytes()
    (data / "main_data.hdf5").write_bytes(torn[: len(torn) // 2])
    fails(capsys, [*TRAIN, "--data", "match/small-v0", *out], "is damaged")
    metadata = json.loads((data / "metadata.json").read_text())
    (data / "metadata.json").write_text(json.dumps({**metadata, "minari_version": "0.0.1"}))
    fails(capsys, [*TRAIN, "--data", "match/small-v0", *out], "is damaged", "0.0.1")
    (data / "metadata.json").write_text("{")
    fails(capsys, [*TRAIN, "--data", "match/small-v0", *out], "is damaged")
    assert not pathlib.Path(minari_root, "run").exists()


def test_without_minari_the_extra_is_named(minari_root, capsys, monkeypatch):
    write_minari("match/expert-v0")
    monkeypatch.setitem(sys.modules, "minari", None)
    fails(capsys, [*TRAIN, "--data", "match/expert-v0"], "pip install 'troupe[minari]'")
