"""The agents of docs/agents.md: their size, the names they use, and that they run as it says."""

import ast
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from troupe import environments, launch
from troupe.agents import find_builder
from troupe.agents.programs import dispatch
from troupe.baselines.command.line import main

REFERENCE = pathlib.Path(__file__).parents[2] / "docs" / "site" / "reference.py"
TINY = [
    *("--config.hidden_sizes", "8", "--config.min_replay_size", "16", "--config.batch_size", "4"),
    *("--config.samples_per_insert", "2", "--config.steps_per_dispatch", "2"),
]


@pytest.fixture(params=["c51.py", "td3.py"])
def code(request, pages):
    return pages("agents.md")[0][request.param]


def test_an_agent_takes_at_most_130_lines(code):
    lines = [line.strip() for line in code.splitlines()]
    assert 90 < sum(bool(line) and not line.startswith("#") for line in lines) <= 130


def test_an_agent_uses_documented_names_alone(code):
    """What it imports of troupe is public in a module that `make docs` describes."""
    (modules,) = re.findall(
        r"^MODULES = (\(.*?^\))", REFERENCE.read_text(), re.DOTALL | re.MULTILINE
    )
    described = {*ast.literal_eval(modules)}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("troupe"):
            for name in (alias.name for alias in node.names):
                if f"{node.module}.{name}" in described:
                    continue
                assert node.module in described, node.module
                module = importlib.import_module(node.module)
                public = getattr(module, "__all__", None)
                if public is None:
                    public = [one for one in vars(module) if not one.startswith("_")]
                assert name in public


def test_the_launch_from_python_runs(documented, pages, tmp_path, monkeypatch):
    script, *_ = pages("agents.md")[1]
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "agents.md", "exec"), {})
    assert json.loads((tmp_path / "runs" / "c51" / "result.json").read_text())["agent"] == "c51"


def test_a_policy_with_a_memory_is_made_as_it_says(pages):
    _, script, _ = pages("agents.md")[1]
    scope = {}
    exec(compile(script, "agents.md", "exec"), scope)
    network, policy = scope["network"], scope["policy"]
    params, key = network.init(jax.random.key(0)), jax.random.key(1)
    observation = np.ones(2, np.float32)  # Of zeros nothing would be remembered.
    action, after = policy.select_action(params, observation, policy.init(key))
    assert int(action) in (0, 1)
    assert np.abs(after.memory).max() > 0


def test_a_wrapper_of_ones_own_learns_beside_the_agent(pages):
    *_, script = pages("agents.md")[1]
    scope = {"__name__": __name__}
    exec(compile(script, "agents.md", "exec"), scope)
    builder = scope["CuriousDQNBuilder"]()
    spec = environments.make_spec(environments.make("CartPole-v1", seed=0))
    networks = builder.make_networks(spec)
    update = builder.make_update(networks, spec)
    batch = builder.make_replay_tables(spec, builder.make_policy(networks, spec)).sample_shapes()
    state = jax.eval_shape(update.init, jax.random.key(0))
    after, output = jax.eval_shape(update.step, state, dispatch.on_device(batch))
    assert after.wrapper == state.wrapper
    assert {"rewards", "novelty", "mean_q"} <= {*output.metrics}


COMMAND = """
import sys
sys.path.remove("")  # As in the script `troupe`, whose own folder is on the path instead.
from troupe.baselines.command import main
sys.exit(main())
"""


def python(folder, *arguments):
    """Runs the command in a process of its own, from a folder."""
    process = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": ""},
    )
    return process.returncode, process.stdout, process.stderr


def test_a_run_remembers_where_its_agent_came_from(documented, tmp_path, monkeypatch, capsys):
    """In one process, begun in the agent's folder and judged from another."""
    out, elsewhere = str(tmp_path / "run"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "td3.py").write_text("raise SystemExit('another')")
    monkeypatch.chdir(documented)
    asked = ["train", "td3:TD3Builder", "--env", "fake/match", "--env.continuous", "true"]
    asked += ["--env.length", "4", "--steps", "40", "--evaluate-every", "40", "--out", out]
    assert main([*asked, *TINY]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["folders"] == {"td3": str(documented)}
    assert config["environment"] == {"continuous": True, "length": 4}
    code, output, error = python(elsewhere, "evaluate", out, "--episodes", "2", "--json")
    assert code == 0, error
    assert json.loads(output)["max"] <= 4
    changed = {**config, "agent": "td4:TD3Builder", "folders": {"td4": str(tmp_path / "gone")}}
    (tmp_path / "run" / "config.json").write_text(json.dumps(changed))
    capsys.readouterr()
    assert main(["evaluate", out]) == 2
    error = capsys.readouterr().err
    assert error.startswith("troupe: The agent 'td4:TD3Builder' cannot be imported: No module")
    assert f"begun with it in {tmp_path / 'gone'}" in error


def test_a_run_remembers_where_its_torso_came_from(documented, tmp_path, monkeypatch):
    """Begun in its folder; resumed, judged, exported and read from another."""
    out, elsewhere = str(tmp_path / "run"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "encoder.py").write_text("raise SystemExit('another')")
    asked = ["train", "dqn", "--env", "fake/match", "--env.length", "4", "--steps", "40"]
    asked += ["--config.torso", "encoder:make", "--evaluate-every", "40", "--out", out, *TINY]
    monkeypatch.chdir(documented)
    assert main(asked) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["folders"] == {"encoder": str(documented)}
    assert config["config"]["torso"] == "encoder:make"
    code, _, error = python(elsewhere, "resume", out, "--steps", "60")
    assert code == 0, error
    code, output, error = python(elsewhere, "evaluate", out, "--episodes", "2", "--json")
    assert code == 0, error
    assert json.loads(output)["actor_steps"] == 60
    code, _, error = python(elsewhere, "export", out, "--out", str(tmp_path / "policy.zip"))
    assert code == 0, error
    script = f"from troupe import launch; print(*launch.load_learner({out!r}).arrays)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], check=True, cwd=elsewhere, capture_output=True, text=True
    )
    assert "layer_norm_1/scale" in loaded.stdout


FACTORY = """
from troupe import environments

def make_environment(*, seed, num_envs, evaluation):
    return environments.make("fake/match", seed=seed, num_envs=num_envs, continuous=True)
"""


def test_a_run_of_python_remembers_it_too(documented, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "brought"
    folder.mkdir()
    for name, code in (("factory", FACTORY), ("brought", (documented / "encoder.py").read_text())):
        (folder / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    builder = find_builder("sac")
    tiny = {"hidden_sizes": (8,), "min_replay_size": 16, "batch_size": 4}
    config = builder.config_class(torso="brought:make", samples_per_insert=2.0, **tiny)
    make_environment = importlib.import_module("factory").make_environment
    experiment = launch.Experiment(
        builder(config), make_environment, "fake/match", num_actor_steps=40
    )
    run = tmp_path / "run"
    launch.run(experiment, run)
    stored = json.loads((run / "config.json").read_text())
    assert stored["folders"] == {"brought": str(folder)}
    code, _, error = python(tmp_path, "evaluate", str(run), "--episodes", "1")
    assert code == 0, error
    (folder / "brought.py").unlink()
    monkeypatch.delitem(sys.modules, "brought")
    capsys.readouterr()
    assert main(["evaluate", str(run)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("troupe: --config.torso is brought:make, which cannot be imported: Mod")


@pytest.mark.long
@pytest.mark.distributed
def test_the_same_agent_runs_as_processes(documented, tmp_path):
    pytest.importorskip("launchpad")
    pytest.importorskip("reverb")
    out, elsewhere = str(tmp_path / "run"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    asked = ["train", "c51:C51Builder", "--env", "my_envs:Maze-v0", "--out", out, "--steps", "200"]
    launch = ["--launch", "processes", "--actors", "2", "--env.length", "5"]
    code, _, error = python(documented, *asked, *launch, *TINY)
    assert code == 0, error
    assert json.loads((tmp_path / "run" / "result.json").read_text())["learner_steps"] > 0
    code, output, error = python(elsewhere, "evaluate", out, "--episodes", "2", "--json")
    assert code == 0, error
    assert json.loads(output)["max"] <= 1.0
