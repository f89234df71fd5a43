"""Things that users of other libraries try first: each works, or one line says what to do."""

import importlib.util
import pathlib
import shlex
import shutil

import gymnasium
import jax
import numpy as np
import pytest

from troupe import environments, launch
from troupe.agents.dqn import DQNBuilder, DQNConfig
from troupe.agents.other_names import FIELDS
from troupe.agents.ppo import PPOConfig
from troupe.baselines.command import other_names
from troupe.baselines.command.line import main
from troupe.baselines.settings import SETTINGS

_HERE = pathlib.Path(__file__)
_SPEC = importlib.util.spec_from_file_location("things", _HERE.with_name("things.py"))
things = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(things)

_SMALL = DQNConfig(hidden_sizes=(4,), min_replay_size=8, batch_size=2)


class Chain(gymnasium.Env):
    """Five steps, a reward of 1 for each."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(2, np.float32), 1.0, self.time == 5, False, {}


class OldChain(Chain):
    """As gym 0.21 has it."""

    def reset(self):
        return super().reset()[0]

    def step(self, action):
        observation, reward, done, _, info = super().step(action)
        return observation, reward, done, info


class TextChain(Chain):
    observation_space = gymnasium.spaces.Text(5)


class Stop(launch.Callback):
    def on_metrics(self, row):
        raise launch.StopRun("that is enough")

    on_evaluation = on_metrics


def monitored():
    return gymnasium.wrappers.RecordEpisodeStatistics(Chain())


def vector(make):
    """A factory of environments that `make` makes."""

    def make_environment(*, seed, num_envs, evaluation):
        return environments.Vector(
            [environments.GymnasiumEnvironment(make(), seed=seed + i) for i in range(num_envs)]
        )

    return make_environment


def experiment(factory, **more):
    return launch.Experiment(
        DQNBuilder(_SMALL),
        factory,
        "chain",
        num_actor_steps=16,
        evaluation=launch.Evaluation(every=8, episodes=1, final_episodes=1),
        **more,
    )


def pong(id):
    """Specs of a game."""
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    spec = environments.make_spec(environments.make(id, seed=0))
    return spec.observations.shape, spec.observations.dtype, spec.actions.num_values


def predict(run):
    policy = launch.load_policy(run)
    observation = np.zeros(4, np.float32)
    return policy.act(policy.parameters, observation, policy.init(jax.random.key(0)))[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A complete run, of as little as there can be."""
    folder = tmp_path_factory.mktemp("things")
    words = f"train dqn --env CartPole-v1 {things.SMALL['dqn']}".replace("DIR", str(folder))
    assert main(shlex.split(words), SETTINGS) == 0
    return folder / "new"


@pytest.fixture
def known(run, tmp_path):
    """Names of the expressions."""

    def run_chain(factory, **more):
        return launch.run(experiment(factory, **more), tmp_path / "chain", progress=False)

    own = {"experiment": experiment, "vector": vector, "pong": pong, "run": run_chain}
    classes = {"Chain": Chain, "OldChain": OldChain, "TextChain": TextChain, "Stop": Stop}
    other = {"PPOConfig": PPOConfig, "make_vec": gymnasium.make_vec, "Monitored": monitored}
    return {
        "launch": launch,
        "environments": environments,
        "predict": lambda _: predict(run),
        **own,
        **classes,
        **other,
    }


@pytest.mark.parametrize(("tried", "command", "answer"), things.REFUSED)
def test_a_command_is_answered_in_one_line(tried, command, answer, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command.replace("DIR", str(tmp_path))), SETTINGS) == 2
    error = capsys.readouterr().err
    assert error.startswith("troupe: ")
    assert error.count("\n") == 1
    assert answer in error
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("tried", "command"), things.WORKS)
def test_a_command_works(tried, command, run, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    agent = "ppo" if "train ppo" in command else "dqn"
    words = command.replace("SMALL", things.SMALL[agent])
    words = words.replace("DIR", str(tmp_path)).replace("RUN", str(copy))
    assert main(shlex.split(words), SETTINGS) == 0, capsys.readouterr().err


@pytest.mark.parametrize(("tried", "expression", "answer"), things.PYTHON_REFUSED)
def test_python_is_answered_in_one_line(tried, expression, answer, known):
    with pytest.raises((ValueError, TypeError, AttributeError)) as raised:
        eval(expression, known)
    message = str(raised.value)
    assert answer in message
    assert "\n" not in message


@pytest.mark.parametrize(("tried", "expression"), things.PYTHON_WORKS)
def test_python_works(tried, expression, known):
    assert eval(expression, known)


def test_fields_of_other_names_are_fields():
    from troupe.agents import AGENTS, find_builder
    from troupe.launch.specification import fields

    known = {name for agent in AGENTS for name in fields.fields(find_builder(agent).config_class)}
    assert not {one for names in FIELDS.values() for one in names} - known


def test_flags_that_exist_are_not_answered_with_others():
    from troupe.baselines.command.commands import train
    from troupe.baselines.command.parser import Commands

    commands = Commands()
    train.register(commands)
    with pytest.raises(SystemExit):
        commands.parser.parse_args(["train", "--help"])
    for flag in other_names.FLAGS:
        with pytest.raises(ValueError, match=r"unrecognized|expected one|ambiguous"):
            commands.parser.parse_args(["train", "ppo", "--env", "A", flag])


def test_the_page_has_the_table():
    page = _HERE.parents[2] / "docs" / "coming.md"
    if not page.exists():
        pytest.skip("of the repository")
    assert things.table() in page.read_text()
    assert len(things.table().splitlines()) > 40
