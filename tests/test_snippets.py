"""The Python code of pages that no other test runs, with small budgets; and that there is none that
no test runs."""

import dataclasses
import functools
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from troupe import environments, launch
from troupe import partitioning as pt
from troupe.agents.builder import Builder, OfflineBuilder
from troupe.agents.dqn import DQNBuilder, DQNConfig
from troupe.agents.programs import dispatch
from troupe.agents.replay.items import Transitions
from troupe.baselines.command.line import main
from troupe.partitioning import models

from .pages import DOCS, OF_THE_REPOSITORY, ROOT

README = "../README.md"
HERE = {README, "launching.md", "offline.md", "pipelines.md", "python.md", "simulator.md"}
ELSEWHERE = {
    "agents.md": "agents/test_docs.py",
    "automatic.md": "partitioning/test_docs.py",
    "coming.md": "test_site.py",
    "compiled.md": "launch/compiled/test_docs.py",
    "environments.md": "environments/test_docs.py",
    "external.md": "environments/external/test_docs.py",
    "partitioning.md": "partitioning/test_docs.py",
    "tokens.md": "environments/text/test_docs.py",
    "tutorial/agent.md": "test_commands.py",
    "tutorial/environment.md": "test_site.py",
    "tutorial/train.md": "test_site.py",
}
"""The test that runs a page's code."""
BUDGETS = {"30_000": "1_200", "60_000": "1_400", "5_000": "40"}

pytestmark = OF_THE_REPOSITORY


def quick(code):
    """The code with small budgets."""
    return re.sub("|".join(BUDGETS), lambda found: BUDGETS[found[0]], code)


def run(code, scope, page):
    """Runs code of a page, with small budgets."""
    exec(compile(quick(code), page, "exec"), scope)


@pytest.fixture
def scripts(pages, tmp_path, monkeypatch):
    """The code of a page in order, of which runs are in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    return lambda page: pages(page)[1]


def test_the_code_of_every_page_is_run():
    having = {p for p in DOCS.rglob("*.md") if "```python" in p.read_text()}
    assert {str(p.relative_to(DOCS)) for p in having} | {README} == HERE | ELSEWHERE.keys()
    for page, test in ELSEWHERE.items():
        text = (ROOT / "tests" / test).read_text()
        assert f'"{page}"' in text or f'"{pathlib.Path(page).stem}"' in text


@pytest.mark.long
def test_readme(scripts, capsys):
    train, outline, partition = scripts(README)
    run(train, {"__name__": "__main__"}, README)
    assert "'mean'" in capsys.readouterr().out.splitlines()[-1]
    scope = {"Builder": Builder, "MyConfig": DQNConfig, "MyNetworks": object}
    run(outline, scope, README)
    assert not scope["MyBuilder"].__abstractmethods__
    example = models.make("mlp", num_layers=4, batch=32)
    state, batch = example.init(jax.random.key(0)), example.make_batch(jax.random.key(1))
    scope = {"update": example.update, "state": state, "batch": batch}
    scope |= {"state_shapes": example.state_shapes, "batch_shapes": example.batch_shapes}
    run(partition, scope, README)
    assert np.isfinite(scope["metrics"]["loss"])


@pytest.mark.long
def test_python(scripts, monkeypatch):
    experiment, policy, learner, exported, callback = scripts("python.md")
    pathlib.Path("mine.py").write_text(quick(experiment))
    command = [sys.executable, "mine.py"]
    subprocess.run(command, check=True, env={**os.environ, "XLA_FLAGS": ""})
    assert json.loads(pathlib.Path("runs/mine/result.json").read_text())["actor_steps"] == 1_400
    monkeypatch.syspath_prepend(pathlib.Path.cwd())
    scope = {**vars(importlib.import_module("mine")), "jax": jax}
    scope["observation"] = np.zeros(4, np.float32)
    run(policy, scope, "python.md")
    assert int(scope["action"]) in (0, 1)
    builder = scope["experiment"].builder
    spec = environments.make_spec(environments.make("CartPole-v1", seed=0))
    core = builder.make_policy(builder.make_networks(spec), spec)
    shapes = dispatch.on_device(builder.make_replay_tables(spec, core).sample_shapes())
    scope["batch"] = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    run(learner, scope, "python.md")
    assert pathlib.Path("runs/tuned/result.json").exists()
    assert main(["export", "runs/mine", "--best", "--out", "policy.zip"]) == 0
    run(exported, scope, "python.md")
    assert scope["done"]
    asked = "launch.Experiment(..., "
    assert asked in callback
    scope["replace"] = dataclasses.replace
    run(callback.replace(asked, "replace(experiment, "), scope, "python.md")
    stop, _ = scope["experiment"].callbacks
    stop.on_evaluation({"actor_steps": 20_001, "mean": 50})
    with pytest.raises(launch.StopRun, match="nothing was learned"):
        stop.on_evaluation({"actor_steps": 20_001, "mean": 49})


@pytest.mark.long
def test_offline(scripts):
    clone, outline = scripts("offline.md")
    scope = {"__name__": __name__}
    run(scripts(README)[0], scope, README)
    small = ["--config.min_replay_size", "50", "--config.hidden_sizes", "8"]
    command = ["train", "dqn", "--env", "CartPole-v1", "--steps", "300", "--out", "runs/dqn"]
    assert main([*command, *small]) == 0
    assert main(["record", "runs/dqn", "--steps", "300"]) == 0
    run(clone, scope, "offline.md")
    assert pathlib.Path("runs/bc/result.json").exists()
    scope = {"OfflineBuilder": OfflineBuilder, "MyConfig": DQNConfig, "MyNetworks": object}
    scope["Transitions"] = Transitions
    run(outline, scope, "offline.md")
    assert not scope["MyBuilder"].__abstractmethods__


def test_pipelines(scripts, capsys):
    plan, with_embedding, co_shard = scripts("pipelines.md")
    scope = {}
    run(plan, scope, "pipelines.md")
    assert "pipeline" in capsys.readouterr().out
    run(with_embedding, scope, "pipelines.md")
    assert len(scope["both"]) == 3
    example = models.make("transformer", num_layers=2, num_heads=8, batch=8)
    scope |= {"update": example.update, "mesh": pt.Mesh({"data": 8})}
    scope["schedule"] = pt.parse_schedule("batch:data")
    run(co_shard, scope, "pipelines.md")
    scope["step"].plan(example.state_shapes, example.batch_shapes)


@pytest.mark.long
def test_simulator(scripts):
    (code,) = scripts("simulator.md")
    calibrate = functools.partial(pt.calibrate, jax.devices()[:1], repeats=1)
    example = models.make("mlp", num_layers=4, batch=32)
    scope = {
        "pt": types.SimpleNamespace(**{**vars(pt), "calibrate": calibrate}),
        "update": example.update,
        "mesh": pt.Mesh({"data": 8}),
        "schedule": pt.parse_schedule("batch:data"),
        "state_shapes": example.state_shapes,
        "batch_shapes": example.batch_shapes,
    }
    run(code, scope, "simulator.md")
    assert scope["last"].fits


def test_transfers(scripts, capsys):
    _, transfer = scripts("launching.md")
    run(transfer, {}, "launching.md")
    assert "28.0 MiB sent in 2 rounds" in capsys.readouterr().out


@pytest.mark.distributed
def test_launching(scripts):
    pytest.importorskip("launchpad")
    launched, _ = scripts("launching.md")
    scope = {"__name__": __name__}
    run(scripts(README)[0], scope, README)
    scope["experiment"] = launch.Experiment(
        DQNBuilder(DQNConfig(hidden_sizes=(8,), min_replay_size=50)),
        scope["make_environment"],
        "CartPole-v1",
        num_actor_steps=300,
    )
    run(launched, scope, "launching.md")
    assert 290 < scope["result"].actor_steps <= 300
