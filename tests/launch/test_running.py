"""Which library keeps the roles of a launch: chosen once, written down, and kept on resume."""

import json

import pytest

from troupe.baselines.command.line import main
from troupe.launch import extras, running
from troupe.launch.errors import RequestError
from troupe.launch.roles import choose_engine
from troupe.launch.specification.recipe import Recipe

TRAIN = ["train", "dqn", "--env", "CartPole-v1"]


@pytest.fixture
def installed(monkeypatch):
    """`installed(*modules)`: only these are, of those that engines need."""

    def have(*modules):
        monkeypatch.setattr(extras, "is_installed", lambda *names: {*names} <= {*modules})

        def require(module, extra, purpose):
            if module not in modules:
                raise RequestError(f"{purpose} needs {module}: pip install 'troupe[{extra}]'.")

        monkeypatch.setattr(extras, "require", require)

    return have


@pytest.mark.parametrize(
    ("kind", "engine", "there", "chosen"),
    [
        ("one-process", None, ["launchpad", "reverb", "ray"], None),
        ("threads", None, [], "launchpad"),
        ("ray", None, ["launchpad", "reverb"], "ray"),
        ("ray", "ray", [], "ray"),
        ("processes", None, ["launchpad", "reverb", "ray"], "launchpad"),
        ("processes", None, ["launchpad", "ray"], "ray"),
        ("processes", None, [], "ray"),
        ("processes", "ray", ["launchpad", "reverb", "ray"], "ray"),
        ("processes", "launchpad", ["ray"], "launchpad"),
    ],
)
def test_processes_are_of_launchpad_where_it_is_installed_else_of_ray(
    installed, kind, engine, there, chosen
):
    installed(*there)
    assert choose_engine(kind, {}, engine) == chosen
    recipe = Recipe("dqn", "CartPole-v1", launch=kind, engine=engine)
    written = recipe.to_json()
    assert written["engine"] == chosen
    installed("launchpad", "reverb", "ray")  # Where the run is gone on with.
    assert Recipe.from_json(written).engine == chosen


def test_a_device_that_was_a_setting_of_the_program_is_the_experiments():
    written = Recipe("dqn", "fake/match", launch="processes", roles={"actors": 2}).to_json()
    del written["learner_device"]
    written["roles"]["learner_device"] = "gpu"
    recipe = Recipe.from_json(written)
    assert (recipe.learner_device, recipe.roles) == ("gpu", {"actors": 2})


@pytest.mark.parametrize(
    ("arguments", "there", "words"),
    [
        ("--engine ray", ["ray"], "--engine needs --launch threads, processes or ray"),
        ("--launch threads --engine ray", ["ray"], "threads is of launchpad alone"),
        ("--launch ray --engine launchpad", ["ray"], "ray is of ray alone"),
        ("--launch processes --engine reverb", ["ray"], "'launchpad', 'ray'"),
        ("--launch processes", [], "--launch processes --engine ray needs ray: pip"),
        ("--launch processes --engine ray", ["launchpad", "reverb"], "'troupe[ray]'"),
        ("--launch processes --engine launchpad", ["ray"], "'troupe[distributed]' under"),
        ("--launch processes --engine launchpad", ["ray", "launchpad"], "needs reverb, which is"),
        ("--launch threads", ["ray"], "take --launch processes --engine ray"),
        ("--launch processes --listen 127.0.0.1", ["ray"], "--listen is for threads and processes"),
        (
            "--launch processes --address auto",
            ["launchpad", "reverb"],
            "--address needs --launch ray, or --launch processes with --engine ray",
        ),
        ("--launch threads --actor-cpus 1", [], "--actor-cpus needs --launch ray"),
        ("--launch processes --learner-gpus 1 --engine launchpad", [], "--learner-gpus needs"),
    ],
)
def test_what_does_not_go_together_or_is_not_installed(
    installed, capsys, tmp_path, arguments, there, words
):
    installed(*there)
    out = tmp_path / "run"
    assert main([*TRAIN, "--out", str(out), *arguments.split()]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert words in line
    assert not out.exists()


@pytest.mark.parametrize(
    ("written", "engine"),
    [
        ({"launch": "processes", "engine": "ray"}, "ray"),
        ({"launch": "processes", "engine": "launchpad"}, "launchpad"),
        ({"launch": "processes"}, "launchpad"),  # Before there was a choice.
        ({"launch": "ray"}, None),
        ({"launch": "one-process", "engine": None}, None),
    ],
)
def test_a_run_goes_on_with_the_engine_that_it_was_begun_with(
    monkeypatch, tmp_path, written, engine
):
    recipe = Recipe("dqn", "CartPole-v1")
    config = {**recipe.to_json(), **written}
    if "engine" not in written:
        del config["engine"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "checkpoints").mkdir()
    asked = []

    def runner(kind, roles, engine):
        asked.append((kind, engine))
        return lambda *arguments, **options: None

    monkeypatch.setattr(running, "runner", runner)
    running.resume(tmp_path)
    running.resume(tmp_path, recipe.experiment())
    assert asked == [(written["launch"], engine)] * 2
