"""Every mistake of the table is one line that names it, with an exit code, and nothing is lost."""

import dataclasses
import shlex
import signal

import pytest

from troupe import agents, environments, launch
from troupe.agents.dqn import DQNBuilder, DQNConfig
from troupe.baselines.command.line import main

from . import bad_fields, bad_inputs

FIELDS = [
    (f"train {agent} --env CartPole-v1 --config.{name}={text}", f"--config.{name}")
    for agent, fields in bad_fields.FIELDS.items()
    for name, texts in fields.items()
    for text in texts
]
_CPU_SECONDS = 15.0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A complete run, of as little as there can be."""
    out = tmp_path_factory.mktemp("runs") / "run"
    small = {"hidden_sizes": 4, "min_replay_size": 8, "batch_size": 2, "steps_per_dispatch": 1}
    settings = [f"--config.{name}={value}" for name, value in small.items()]
    arguments = ["train", "dqn", "--env", "CartPole-v1", "--steps", "30", "--out", str(out)]
    assert main([*arguments, "--evaluation-episodes", "1", *settings]) == 0
    return out


@pytest.fixture
def impatient():
    """A command that takes so much time of the processor has not seen the mistake."""

    def give_up(number, frame):
        pytest.fail(f"no answer within {_CPU_SECONDS} s of the processor")

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def content(folder):
    """Every file of a folder and when it was written."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("arguments", "word"), [*FIELDS, *bad_inputs.COMMANDS], ids=lambda text: text[:80]
)
def test_a_mistake_is_one_line_and_loses_nothing(
    arguments, word, run, tmp_path, monkeypatch, capsys
):
    folder, file = tmp_path / "dir", tmp_path / "file"
    folder.mkdir()
    file.write_text("text\n")
    monkeypatch.chdir(folder)
    before = content(run)
    places = {"DIR": str(folder), "RUN": str(run), "FILE": str(file)}
    words = shlex.split(arguments)
    for name, path in places.items():
        word = word.replace(name, path) if any(name in one for one in words) else word
        words = [one.replace(name, path) for one in words]
    code = main([one for one in words if one or len(words) > 1])
    output = capsys.readouterr()
    assert code in (1, 2), (code, output.err)
    assert output.err.startswith("troupe: "), output.err
    assert output.err.count("\n") == 1, output.err
    assert "Traceback" not in output.err
    assert word in output.err
    assert content(run) == before, "files of a run were touched"
    assert not [*folder.iterdir()], "something was left behind"
    assert file.read_text() == "text\n"


def factory(*, seed, num_envs, evaluation):
    return environments.make("CartPole-v1", seed=seed, num_envs=num_envs)


KNOWN = {
    "launch": launch,
    "agents": agents,
    "environments": environments,
    "DQNConfig": DQNConfig,
    "DQNBuilder": DQNBuilder,
    "EXPERIMENT": launch.Experiment(DQNBuilder(), factory, "CartPole-v1", 100_000),
    "replace": dataclasses.replace,
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("expression", "word"), bad_inputs.PYTHON)
def test_a_mistake_in_python_is_a_value_error_of_one_line(expression, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"\w") as raised:
        eval(expression, KNOWN)
    message = str(raised.value)
    assert word in message
    assert "\n" not in message
    assert not [*tmp_path.iterdir()]


def test_the_table_is_long_enough():
    assert len(FIELDS) + len(bad_inputs.COMMANDS) + len(bad_inputs.PYTHON) >= 300
