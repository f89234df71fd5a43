"""The commands of README and of the pages of docs/ run to their ends, with small budgets, on what
they go on with: runs, recordings, plans, sweeps, a simulator elsewhere, a cluster of Ray.

With TROUPE_FULL=1 alone. Launches of processes are Launchpad's where it is there, else Ray's.
Commands with `--against sb3=PYTHON,sbx=PYTHON` take the interpreter that TROUPE_PEERS names, those
with `--against processes=PYTHON` the one that TROUPE_LAUNCHPAD names.
"""

import dataclasses
import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading

import gymnasium
import jax
import numpy as np
import pytest

from troupe import environments
from troupe.agents import find_builder
from troupe.agents.networks import checkpoint_folder
from troupe.agents.networks.decoder import Decoder, DecoderConfig
from troupe.baselines.command.line import main
from troupe.baselines.settings import SETTINGS
from troupe.environments.external import client

from . import demonstrations
from .environments.text import word_tokenizers
from .pages import PAGES, commands

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not os.environ.get("TROUPE_FULL"), reason="minutes; set TROUPE_FULL=1"),
]

FIELDS = {
    "batch_size": "16",
    "min_replay_size": "64",
    "random_steps": "16",
    "samples_per_insert": "2",
    "supervised_steps": "4",
}
"""Given to agents that have them."""
BUDGETS = {
    "train": "--steps 300 --evaluate-every 300 --evaluation-episodes 1 "
    "--final-evaluation-episodes 1",
    "compare": "--steps 300 --seeds 5 --batch 5",
    "compare --ledger": "--seeds 5 --batch 5",
    "resume": "--steps 400",
    "sweep": "--trials 2 --steps 300 --final-evaluation-episodes 1",
    "sweep --resume": "--trials 3",
    "evaluate": "--episodes 1",
    "record": "--steps 100",
    "troupe.baselines.speed": "--steps 3000 --repeats 1",
    "troupe.baselines.speed sac": "--steps 10400 --repeats 1",
    "troupe.baselines.speed normalized+sac": "--steps 10400 --repeats 1",
    "troupe.baselines.speed --launch": "--seconds 2 --rounds 1 --actors 2 --step-ms 5",
    "troupe.baselines.speed.accelerator": "--steps 2000 --turns 1",
    "troupe.baselines.speed.compiled": "--cases ppo-4x128 --rounds 1",
    "troupe.baselines.speed.partitioner": "--layers 2 --compiles 1 --rounds 1",
}
"""Flags by the command, and by the command with another of its words."""
RUNS = {
    "dqn": "dqn --env CartPole-v1",
    "ppo": "ppo --env jax:CartPole-v1 --launch compiled",
    "rainbow": "rainbow --env CartPole-v1",
    "sac": "sac --env Pendulum-v1",
    "small": "small:SmallBuilder --env CartPole-v1",
    "new": "ppo --env jax:pgx/connect_four --launch compiled --env.opponent pool",
    "dqn-1": "dqn --env external:127.0.0.1:7000",
    "processes": "dqn --env CartPole-v1 --launch processes --actors 2",
}
"""Those that pages go on with, as they name their folders. All others are the first of them."""
ALSO = {"last-week": "new", "ppo-jax-CartPole-v1-0": "ppo"}
RECORDINGS = {"shown.npz": "rainbow", "mixed.npz": "sac", "recording.npz": "dqn"}
OUTPUTS = ("--out", "--save", "--save-plan", "--save-search", "--video")
STARTS = re.compile(r"--launch (processes|threads|ray)|--learner-hosts|(processes|ray):\d")
"""Commands that start processes."""
STEP = """
from troupe.partitioning import models

example = models.make("mlp", num_layers=2)
step, step_arguments = example.update, (example.state_shapes, example.batch_shapes)
"""


def every():
    """The commands of the package, each once."""
    found = {shlex.join(words) for page in PAGES for words in commands(page)}
    return [
        pytest.param(one, id=one.removeprefix("troupe ").replace("/", ":")) for one in sorted(found)
    ]


def put(words, flag, value):
    """Gives a flag its value, in place of what it has."""
    if flag in words:
        words[words.index(flag) + 1] = value
    else:
        words += [flag, value]


def small(words):
    """The command with small budgets."""
    words, name = list(words), words[0] if words[0] != "-m" else words[1]
    keys = [key for word in words if (key := f"{name} {word}") in BUDGETS] or [name]
    flags = iter(shlex.split(BUDGETS.get(keys[0], "")))
    for flag in flags:
        put(words, flag, next(flags))
    if "--actors" in words and name != "deploy":
        put(words, "--actors", "2")
    if name in ("train", "compare", "sweep") and not {"--resume", "--ledger"} & {*words}:
        fields = {one.name for one in dataclasses.fields(find_builder(words[1]).config_class)}
        kept = {flag for flag, value in itertools.pairwise(words) if "," in value}
        kept |= {"--config.batch_size"} if "--plan" in words else set()
        for field in sorted(FIELDS.keys() & fields):
            if f"--config.{field}" not in kept:
                put(words, f"--config.{field}", FIELDS[field])
    return words


def run(words):
    """Has a command end well: in this process, or in one of its own where it starts others."""
    # Five seeds of 300 steps do not show that returns are equal, which is said with 1.
    statuses = (0, 1) if words[0] == "compare" else (0,)
    alone = words[0] == "-m"
    text = " ".join(words)
    if not alone and not STARTS.search(text):
        assert main(words, SETTINGS) in statuses, text
        return
    devices = 8 if "--mesh" in words else 2 if "@data=2" in text else 1
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags}
    command = [sys.executable, *([] if alone else ["-m", "troupe"]), *words]
    assert subprocess.call(command, env=environment) in statuses, text


@pytest.fixture(scope="module")
def simulators():
    """Two servers of CartPole: their addresses."""
    servers = []
    for _ in range(2):
        is_there = threading.Event()

        def started(server, is_there=is_there):
            servers.append(server)
            is_there.set()

        def serve(started=started):
            client.serve(lambda: gymnasium.make("CartPole-v1"), "127.0.0.1:0", started=started)

        threading.Thread(target=serve).start()
        assert is_there.wait(30)
    yield [server.address for server in servers]
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def cluster():
    """The address of a cluster of Ray."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        one = cluster_utils.Cluster()
        one.add_node(num_cpus=8, include_dashboard=False, object_store_memory=80_000_000)
        yield one.address
        one.shutdown()


@pytest.fixture(scope="module")
def made(documented, simulators, tmp_path_factory):
    """Makes the runs and files that commands go on with, each once: `made("runs/dqn")`."""
    folder = tmp_path_factory.mktemp("made")

    def make(name):
        path = folder / name
        if path.exists():
            return path
        path.parent.mkdir(exist_ok=True)
        if name in RECORDINGS:
            played = make(f"runs/{RECORDINGS[name]}")
            run(["record", str(played), *f"--steps 300 --out {path}".split()])
        elif name == "runs/sweep":
            words = "sweep dqn --env CartPole-v1 --config.learning_rate 1e-4:1e-2:log --out"
            run(small([*words.split(), str(path)]))
        elif name == "plan.json":
            words = "plan dqn --env CartPole-v1 --mesh data=8 --schedule batch:data --save-plan"
            run([*words.split(), str(path)])
        elif name == "settings.json":
            path.write_text(json.dumps({"n_step": 2}))
        elif name == "mine.py":
            path.write_text(STEP)
        elif name == "models":
            make_model(path / "qwen3-0.6b")
        else:
            words = RUNS[name.removeprefix("runs/")].replace("127.0.0.1:7000", simulators[0])
            run(small(["train", *words.split(), "--out", str(path)]))
        return path

    return make


def make_model(folder):
    """A small decoder and the tokenizer that it was trained with."""
    folder.mkdir(parents=True)
    words = [*"0123456789>?", "<end>", "<fill>", "<unk>", "<none>"]
    word_tokenizers.write(folder, words, ".")
    sizes = {"width": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_width": 8}
    config = DecoderConfig(vocabulary=16, hidden=48, context=128, tied=True, qk_norm=True, **sizes)
    checkpoint_folder.write(folder, config, jax.device_get(Decoder(config).init(jax.random.key(0))))


def make_dataset():
    """`cartpole/expert-v0` of Minari, of episodes of CartPole."""
    pytest.importorskip("minari")
    environment, theirs = environments.make("CartPole-v1", seed=0), gymnasium.make("CartPole-v1")
    spaces = theirs.observation_space, theirs.action_space
    played = demonstrations.episodes(environment, 5, lambda _: np.int64(1))
    demonstrations.write_minari("cartpole/expert-v0", played, *spaces)


@pytest.fixture
def settle(made, documented, simulators, request, tmp_path, monkeypatch):
    """Makes the folder in which a command is run, and says what is another there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(documented), prepend=os.pathsep)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")

    def put_there(name, path):
        """A copy of what was made."""
        source = made(name)
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / path)

    def other(word, before, others):
        """The word in place of this one."""
        last = word.rpartition("/")[2]
        if before == "--address":
            return request.getfixturevalue("cluster")
        if word.startswith("external:"):
            return "external:" + ",".join(simulators[: word.count(",") + 1])
        if "=PYTHON" in word:
            return interpreters(word)
        if before == "--learner-device":
            return "cpu"
        if word.startswith(("/shared", "/models")):
            word = f"{tmp_path}{word}"
        if before in OUTPUTS:
            return {"FILE": "film.mp4", "DIR/film.gif": "film.gif"}.get(word, word)
        if last in (*RECORDINGS, "plan.json", "settings.json"):
            put_there(last, word)
        elif word == "mine:step":
            put_there("mine.py", "mine.py")
        elif last == "qwen3-0.6b" and not (tmp_path / "models").exists():
            put_there("models", "models")
        elif word.startswith("runs/sweep"):
            put_there("runs/sweep", "runs/sweep")
        elif word == "runs/":
            put_there("runs/dqn", "runs/dqn")
        elif word in ("DIR", "RUN") or word.startswith("runs/"):
            name = ALSO.get(last, last)
            if "--actors" in others and "--launch" not in others:
                name = "processes"
            put_there(f"runs/{name if name in RUNS else 'dqn'}", word)
        elif word == "cartpole/expert-v0":
            make_dataset()
        return word

    return lambda words: [
        other(word, before, words) for before, word in itertools.pairwise(["", *words])
    ]


def interpreters(word):
    """sb3=PYTHON with the interpreter that has it; skips where none is named."""
    variable = "TROUPE_LAUNCHPAD" if word.startswith("processes=") else "TROUPE_PEERS"
    if variable not in os.environ:
        pytest.skip(f"set {variable} to an interpreter")
    return word.replace("PYTHON", os.environ[variable])


@pytest.mark.parametrize("command", every())
def test_it_runs(command, settle):
    words = shlex.split(command)[1:]
    if "--help" in words:
        with pytest.raises(SystemExit) as ended:
            main(words, SETTINGS)
        assert not ended.value.code
        return
    if "--launch threads" in command or "speed dqn --launch processes" in command:
        pytest.importorskip("launchpad")
    elif STARTS.search(command) and ("ray" in command or not importlib.util.find_spec("launchpad")):
        pytest.importorskip("ray")
    run(small(settle(words)))
