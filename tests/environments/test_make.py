"""Ids: what is made from them, and what is said when that cannot be."""

import sys

import gymnasium
import pytest

from troupe import environments


@pytest.mark.parametrize(
    ("id", "near"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("LunarLander-v2", "LunarLander-v3"),
        ("ALE/Pongg-v5", "ALE/Pong-v5"),
        ("MinAtar/Breakot-v1", "MinAtar/Breakout-v1"),
        ("halfcheetah-v5", "HalfCheetah-v5"),
    ],
)
def test_an_unknown_id_lists_near_names(id, near):
    with pytest.raises(environments.UnknownEnvironmentError) as caught:
        environments.make(id, seed=0)
    message = str(caught.value)
    assert message.startswith(f"unknown environment {id!r}; near names: ")
    assert near in message
    assert "\n" not in message


def test_an_id_unlike_any_other_lists_examples():
    with pytest.raises(environments.UnknownEnvironmentError, match="for example"):
        environments.make("qqqqqqqq", seed=0)


@pytest.mark.parametrize(
    ("id", "package", "extra"),
    [
        ("ALE/Pong-v5", "ale_py", "atari"),
        ("ALE/Pong-v5", "cv2", "atari"),
        ("MinAtar/Breakout-v1", "minatar", "minatar"),
        ("HalfCheetah-v5", "mujoco", "mujoco"),
        ("LunarLander-v3", "Box2D", "box2d"),
        ("dm_control/cartpole-swingup", "dm_control", "dm_control"),
        ("bsuite/catch/0", "bsuite", "bsuite"),
        ("jax:brax/halfcheetah", "brax", "brax"),
        ("jax:craftax/Craftax-Classic-Symbolic-v1", "craftax", "craftax"),
        ("jax:pgx/minatar-breakout", "pgx", "pgx"),
    ],
)
def test_a_missing_extra_is_named(monkeypatch, id, package, extra):
    for name in list(sys.modules):
        # Else what an earlier test imported would stand in for what is missing.
        made_of_it = name.startswith("gymnasium.envs.") and not name.endswith("registration")
        if made_of_it or name.partition(".")[0] == package:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(environments.MissingExtraError) as caught:
        environments.make(id, seed=0)
    assert f"{id} needs an extra: pip install 'troupe[{extra}]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_argument_that_the_environment_does_not_have_is_refused():
    with pytest.raises(environments.InvalidOptionError, match=r"CartPole-v1.*gravity_on_mars"):
        environments.make("CartPole-v1", seed=0, gravity_on_mars=True)


def test_arguments_reach_the_environment():
    environment = environments.make("FrozenLake-v1", seed=0, map_name="8x8", is_slippery=False)
    assert environment.observation_spec().num_values == 64


@pytest.mark.parametrize(
    "options", [{"actions": "wrap"}, {"reward_clip": 0.0}, {"max_episode_steps": -3}]
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(environments.InvalidOptionError, match=next(iter(options))):
        environments.make("Pendulum-v1", seed=0, **options)


def test_an_id_may_name_the_module_that_registers_it(tmp_path, monkeypatch):
    (tmp_path / "own_environments.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Own-v0', 'gymnasium.envs.classic_control:CartPoleEnv',"
        " max_episode_steps=7)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        environment = environments.make("own_environments:Own-v0", seed=0)
        assert environment.observation_spec().shape == (4,)
        with pytest.raises(environments.UnknownEnvironmentError, match="no_such_module"):
            environments.make("no_such_module:Own-v0", seed=0)
    finally:
        gymnasium.registry.pop("Own-v0", None)


def test_mujoco_writes_no_file_where_it_runs(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    environments.make("HalfCheetah-v5", seed=0).close()
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr().err == ""


def test_every_error_is_a_value_error_of_one_family():
    for name in environments.__all__:
        item = getattr(environments, name)
        if name.endswith(("Error", "Fault")):
            assert issubclass(item, environments.EnvironmentFault)
            assert issubclass(item, ValueError)
