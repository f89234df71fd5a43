"""`--config-file`: settings from a file, for every command that has settings."""

import importlib.util
import json

import pytest

from troupe.baselines.command.line import main

ARGUMENTS = ["plan", "dqn", "--env", "CartPole-v1", "--mesh", "data=2", "--schedule", "batch:data"]
TOML = pytest.mark.skipif(
    not any(map(importlib.util.find_spec, ("tomllib", "tomli"))), reason="no reader of TOML"
)


def batch_size(capsys, *arguments):
    """Of the plan that a command makes."""
    assert main([*ARGUMENTS, "--json", *arguments]) == 0
    inputs = json.loads(capsys.readouterr().out)["inputs"]
    (shape,) = {tuple(one["shape"]) for path, one in inputs.items() if "reward" in path}
    return shape[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("some.json", '{"batch_size": 24, "hidden_sizes": [8], "double": false}'),
        ("texts.json", '{"batch_size": "24", "hidden_sizes": "8,8", "max_gradient_norm": "none"}'),
        ("config.json", '{"agent": "dqn", "env": "E", "config": {"batch_size": 24}}'),
        pytest.param("some.toml", "batch_size = 24\nhidden_sizes = [8]\n", marks=TOML),
    ],
)
def test_a_file_says_settings_and_flags_come_before_it(capsys, tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text)
    assert batch_size(capsys, "--config-file", str(file)) == 24
    assert batch_size(capsys, f"--config-file={file}", "--config.batch_size", "48") == 48


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("none.json", None, ["cannot read the config file", "none.json", "No such file"]),
        ("a.json", "{'batch_size': 2}", ["a.json is no JSON", "line 1"]),
        ("a.json", "[32, 64]", ["holds no fields and their values", "[32, 64]"]),
        ("a.json", '{"batch_sise": 2}', ["no field 'batch_sise'", "did you mean batch_size"]),
        ("a.json", '{"batch_size": 0}', ["batch_size is 0", "at least 1"]),
        ("a.json", '{"batch_size": "many"}', ["batch_size", "an integer"]),
        pytest.param("a.toml", "batch_size: 2", ["a.toml is no TOML"], marks=TOML),
    ],
)
def test_what_is_no_file_of_settings(capsys, tmp_path, name, text, words):
    if text is not None:
        (tmp_path / name).write_text(text)
    assert main([*ARGUMENTS, "--config-file", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for word in words:
        assert word in error
