"""The command line: what it answers, and that every mistake is one line with an exit code."""

import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import jax
import pytest

from troupe import launch
from troupe import partitioning as pt
from troupe.agents import AGENTS, find_builder
from troupe.agents.programs import dispatch
from troupe.agents.wrappers import composition
from troupe.baselines import settings
from troupe.baselines.command.line import main
from troupe.baselines.tuned import Tuned
from troupe.launch import planning
from troupe.launch.local import components
from troupe.launch.specification.recipe import Recipe
from troupe.partitioning import tactics
from troupe.partitioning.simulator import DEVICES

SHORT = [
    *("train", "dqn", "--env", "CartPole-v1", "--steps", "60", "--evaluate-every", "60"),
    *("--config.hidden_sizes", "8", "--config.min_replay_size", "16", "--config.batch_size", "4"),
    *("--config.samples_per_insert", "2", "--config.steps_per_dispatch", "2"),
    "--config.max_replay_size=100",
]


def fails(capsys, arguments, code, *words):
    """Asserts that a command ends with a code and one line that has the words in it."""
    assert main(arguments if isinstance(arguments, list) else arguments.split()) == code
    error = capsys.readouterr().err
    assert error.startswith("troupe: ")
    assert error.count("\n") == 1, error
    for word in words:
        assert word in error, error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", ["COMMAND"]),
        ("trian", ["trian", "train", "resume", "evaluate", "plot", "list"]),
        ("train dqn", ["--env"]),
        ("train dqn --env CartPole-v1 --sed 1", ["--sed"]),
        ("train dqm --env CartPole-v1", ["'dqm'", "Did you mean dqn?", "bc, ", "ppo"]),
        ("train no.such:Builder --env CartPole-v1", ["no.such:Builder", "cannot be imported"]),
        ("train json:JSONDecoder --env CartPole-v1", ["not a subclass"]),
        ("train dqn --env CartPol-v1", ["'CartPol-v1'", "CartPole-v1"]),
        ("train dqn --env CartPole-v1 --seed -1", ["seed is -1", "at least 0"]),
        ("train dqn --env CartPole-v1 --steps 0", ["--steps", "'0'", "at least 1"]),
        ("train dqn --env CartPole-v1 --steps 1.5", ["--steps", "'1.5'"]),
        ("train dqn --env CartPole-v1 --checkpoint-every 0", ["every_seconds is 0.0", "above 0"]),
        ("train dqn --env CartPole-v1 --checkpoint-replay some", ["'some'", "always", "never"]),
        ("train dqn --env CartPole-v1 --config.learning_rat 1", ["did you mean learning_rate"]),
        ("train dqn --env CartPole-v1 --config.batch_size many", ["batch_size", "an integer"]),
        ("train dqn --env CartPole-v1 --config.batch_size 0", ["batch_size is 0", "at least 1"]),
        ("train dqn --env CartPole-v1 --config.discount 1.5", ["discount is 1.5", "at most 1"]),
        ("train dqn --env CartPole-v1 --config.batch_size", ["batch_size needs a value"]),
        ("train dqn --env C --config.n_step 1 --config.n_step=2", ["n_step was given twice"]),
        ("train dqn --env Pendulum-v1", ["dqn", "discrete"]),
        (
            "train dqn --env CartPole-v1 --mesh data=2,model=2",
            ["--mesh data=2,model=2 was given without --schedule", "2 axes"],
        ),
        ("train dqn --env CartPole-v1 --schedule batch:data", ["was given without --mesh"]),
        ("train dqn --env C --recompute auto", ["--recompute was given without --mesh"]),
        ("train dqn --env C --mesh data:2 --schedule batch:data", ["'data:2' is not AXIS=SIZE"]),
        ("train dqn --env C --mesh data=2 --schedule bath:data", ["no tactic 'bath'", "batch"]),
        (
            "train dqn --env CartPole-v1 --mesh data=3 --schedule batch:data",
            ["a batch of 64", "mesh data=3", "does not divide by axis 'data' of size 3"],
        ),
        ("train ppo --env CartPole-v1 --mesh m=5 --schedule batch:m", ["a batch of", "size 5"]),
        ("resume DIR", ["not a run's directory"]),
        ("resume DIR --config.n_step 2", ["--config.n_step belongs to a new run"]),
        ("evaluate DIR", ["not a run's directory"]),
        ("evaluate DIR --episodes 0", ["--episodes"]),
        ("plot DIR", ["not a run's directory"]),
    ],
)
def test_what_cannot_be_asked_for(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    fails(capsys, arguments.replace("DIR", str(tmp_path)), 2, *words)
    assert not [*tmp_path.iterdir()], "a wrong request must leave nothing behind"


def test_a_directory_that_cannot_be_had(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    fails(capsys, [*SHORT, "--out", str(tmp_path / "file" / "run")], 2, "cannot write into")
    fails(capsys, [*SHORT, "--out", str(tmp_path)], 2, "is not empty (it holds file)")


def test_debug_shows_where_an_error_comes_from(capsys, tmp_path):
    assert main(["resume", str(tmp_path), "--debug"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert error.splitlines()[-1].startswith("troupe: ")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    assert main([*SHORT, "--out", str(out)]) == 0
    return out


def test_a_trained_run_can_be_evaluated_plotted_and_not_repeated(run, capsys, tmp_path):
    assert json.loads((run / "result.json").read_text())["actor_steps"] == 60
    assert (run / "curve.png").exists()
    assert main(["evaluate", str(run), "--episodes", "3"]) == 0
    assert re.fullmatch(
        r"return \d+\.\d .* over 3 episodes, after 60 actor steps\n", capsys.readouterr().out
    )
    assert main(["evaluate", str(run), "--episodes", "3", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["actor_steps"], summary["episodes"]) == (60, 3)
    assert main(["evaluate", str(run), "--episodes", "3", "--json", "--seed", "0"]) == 0
    assert json.loads(capsys.readouterr().out) == summary
    assert main(["plot", str(run), "--save", str(tmp_path / "curve.png")]) == 0
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    fails(capsys, [*SHORT, "--out", str(run)], 2, f"go on with `troupe resume {run}`")
    fails(capsys, ["resume", str(run)], 2, "is complete", "--steps")


def test_a_film(run, capsys, tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    film = tmp_path / "film.mp4"
    assert main(["evaluate", str(run), "--episodes", "1", "--video", str(film)]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    length = float(re.match(r"return ([\d.]+)", output.out).group(1))
    frames, seconds = ffmpeg.count_frames_and_secs(film)
    assert frames == length + 1
    assert frames / seconds == pytest.approx(50, rel=0.1)  # CartPole's own rate.
    bad = ["evaluate", str(run), "--episodes", "1", "--video", str(tmp_path / "film.xyz")]
    fails(capsys, bad, 2, "cannot make the film", "film.xyz")


@pytest.mark.parametrize("ending", ["gif", "webm", "mkv"])
def test_films_of_other_kinds(run, capsys, tmp_path, ending):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    film = tmp_path / f"film.{ending}"
    assert main(["evaluate", str(run), "--episodes", "1", "--video", str(film)]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    length = float(re.match(r"return ([\d.]+)", output.out).group(1))
    frames, _ = ffmpeg.count_frames_and_secs(film)
    # Of equal pictures in a row a GIF holds one.
    assert frames == length + 1 or (ending == "gif" and 1 < frames <= length + 1)


# imageio leaves the pipe of an encoder that has ended open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("ending", ["gif", "mp4"])
@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_film_on_a_full_disk(run, capsys, tmp_path, ending):
    pytest.importorskip("imageio_ffmpeg")
    film = tmp_path / f"film.{ending}"
    film.symlink_to("/dev/full")
    fails(
        capsys, ["evaluate", str(run), "--episodes", "1", "--video", str(film)], 1, "is not whole"
    )


def test_a_run_goes_on_with_a_larger_budget(run, capsys):
    assert main(["resume", str(run), "--steps", "80"]) == 0
    assert json.loads((run / "result.json").read_text())["actor_steps"] == 80
    assert "goes on in" in capsys.readouterr().out


def test_a_target_that_is_missed_fails(capsys, tmp_path):
    out = tmp_path / "run"
    fails(capsys, [*SHORT, "--out", str(out), "--target", "1000"], 1, "below the target of 1000")
    result = json.loads((out / "result.json").read_text())
    assert result["target_return"] == 1000
    assert result["reached"] is False


def test_a_corrupt_checkpoint_is_a_failure_without_another(capsys, tmp_path):
    assert main([*SHORT, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        os.truncate(path / "learner.npz", 10)
    fails(capsys, ["evaluate", str(tmp_path / "run")], 1, "all checkpoints", "damaged")


_SMALL = {"hidden_sizes": (4,), "batch_size": 2, "min_replay_size": 8, "steps_per_dispatch": 1}
TUNED = Tuned("dqn", "CartPole-v1", _SMALL, 30, 400.0)


def test_tuned_settings_are_where_a_run_starts_from(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "dqn", "--env", "CartPole-v1", "--config.batch_size", "3"]
    assert main(arguments, [TUNED]) == 0
    (out,) = tmp_path.joinpath("runs").iterdir()
    assert out.name == "dqn-CartPole-v1-0"
    config = json.loads((out / "config.json").read_text())
    assert config["steps"] == 30
    assert config["config"]["hidden_sizes"] == [4]
    assert config["config"]["batch_size"] == 3
    assert main(arguments, [TUNED]) == 0
    assert sorted(path.name for path in out.parent.iterdir())[1] == "dqn-CartPole-v1-0-2"


def test_an_environment_in_jax_has_the_settings_of_the_same_in_gymnasium():
    tuned = settings.find("ppo", "jax:CartPole-v1")
    assert tuned == dataclasses.replace(settings.find("ppo", "CartPole-v1"), env="jax:CartPole-v1")
    assert settings.find("ppo", "jax:Catch-v0") is None


def test_the_list_has_agents_and_tuned_settings(capsys):
    assert main(["list"], [TUNED]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^  dqn +\S", output, re.M)
    assert "CartPole-v1  dqn, 30 steps to a return of 400" in output
    # They are read from the source, and are what the classes themselves say.
    said = {name: find_builder(name).config_class for name in AGENTS}
    said |= {f"{name}+AGENT": composition.find_wrapper(name) for name in composition.WRAPPERS}
    for name, one in (said | tactics.NAMED).items():
        summary = " ".join(one.__doc__.split()).partition(". ")[0].removesuffix(".")
        assert re.search(rf"^  {re.escape(name)} +{re.escape(summary)}$", output, re.M), name
    for name, device in DEVICES.items():
        size = f"{device.memory_bytes / 1e9:g} GB"
        assert re.search(rf"^  {name} +{size}$", output, re.M), name


def test_a_plan_needs_no_devices_and_predicts(capsys, tmp_path):
    arguments = [
        *["plan", "dqn", "--env", "CartPole-v1", "--mesh", "data=64", "--schedule", "batch:data"]
    ]
    arguments += ["--config.hidden_sizes", "32,32"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mesh"] == {"data": 64}
    assert main([*arguments, "--device", "a100"]) == 0
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()]
    assert [row[:2] for row in rows[2:4]] == [["one", "device"], ["batch", "parallel"]]
    assert "peak (a100-80gb)" in printed
    assert "alive at the peak:" in printed
    assert main([*arguments, "--save", str(tmp_path / "deep" / "plan.png")]) == 0
    assert (tmp_path / "deep" / "plan.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    fails(capsys, [*arguments, "--save", str(tmp_path / "plan.xyz")], 2, "the picture", "plan.xyz")
    assert main([*arguments, "--recompute", "auto", "--memory", "0.5"]) == 0
    assert "nothing is computed again" in capsys.readouterr().out
    fails(
        capsys, [*arguments, "--memory", "0.5"], 2, "without --recompute auto and without an auto"
    )
    fails(capsys, [*arguments, "--recompute", "auto", "--memory", "0"], 2, "share of the device's")
    fails(capsys, [*arguments, "--device", "a11"], 2, "unknown device 'a11'", "h200")
    fails(capsys, [*arguments[:4], "--mesh", "data=2,model=2"], 2, "--schedule")


def test_a_search_is_drawn(capsys, tmp_path):
    arguments = ["plan", "dqn", "--env", "CartPole-v1", "--config.hidden_sizes", "32,32"]
    arguments += ["--mesh", "data=2", "--save-search", str(tmp_path / "deep" / "search.png")]
    assert main([*arguments, "--schedule", "auto:data"]) == 0
    assert (tmp_path / "deep" / "search.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    fails(capsys, [*arguments, "--schedule", "batch:data"], 2, "no tactic of the plan searched")


def test_a_mesh_and_a_schedule_are_chosen(capsys):
    arguments = ["plan", "dqn", "--env", "CartPole-v1", "--config.hidden_sizes", "32,32"]
    assert main([*arguments, "--devices", "2"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^chosen of \d+: --mesh data=\d.* --schedule \S+$", printed, re.M)
    assert re.search(r"^data=2 +auto:data +\S+ +\d\.\d\d ", printed, re.M) or "auto:" in printed
    fails(capsys, [*arguments, "--devices", "0"], 2, "0 devices", "at least 1")
    fails(capsys, [*arguments, "--devices", "2", "--memory", "1.5"], 2, "Goal(memory=1.5)")


def test_a_plan_says_how_parameters_come_to_a_sampler(capsys):
    arguments = ["plan", "dqn", "--env", "CartPole-v1", "--config.hidden_sizes", "32,32"]
    spread = ["--mesh", "model=16", "--schedule", "megatron:model", "--device", "h100"]
    assert main([*arguments, *spread, "--sampler-mesh", "model=1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["sampler"]
    # Two hosts of eight are full, so that all parameters enter a third; the first lacks a part.
    assert found["beside"]["bytes_by_level"]["network"] == found["beside"]["bytes_sent"]
    assert 0 < found["shared"]["bytes_sent"] < found["beside"]["bytes_sent"]
    assert found["beside"]["seconds"] > found["shared"]["seconds"] > 0
    assert main([*arguments, *spread, "--sampler-mesh", "model=1"]) == 0
    printed = capsys.readouterr().out
    for said in (
        "the policy over model=1: ",
        "to devices of its own: 6 arrays of ",
        "over network",
    ):
        assert said in printed
    assert main([*arguments, "--devices", "4", "--sampler-mesh", "model=1"]) == 2
    assert "--sampler-mesh was given with --devices" in capsys.readouterr().err


def test_a_plan_is_kept_and_a_run_uses_it(capsys, tmp_path, monkeypatch):
    task = ["dqn", "--env", "CartPole-v1", "--config.hidden_sizes", "32,32"]
    file = str(tmp_path / "plan.json")
    spread = ["--mesh", "data=2", "--schedule", "auto:data"]
    assert main(["plan", *task, *spread, "--save-plan", file]) == 0
    monkeypatch.setattr(pt.Automatic, "search", None)  # All is decided.
    train = ["train", *task, "--plan", file, "--steps", "1100", "--config.min_replay_size", "200"]
    run = tmp_path / "run"
    assert main([*train, "--out", str(run)]) == 0
    result = json.loads((run / "result.json").read_text())
    assert (result["mesh"], result["devices"]["learner"]) == ("data=2", "cpu")
    assert result["learner_steps"] > 0
    capsys.readouterr()
    other = [*train, "--out", str(tmp_path / "other"), "--config.batch_size", "32"]
    fails(capsys, other, 2, "another step", "f32[32] here")
    fails(capsys, [*other, "--mesh", "data=2"], 2, "--mesh was given beside --plan")


@pytest.mark.parametrize("agent", ["dqn", "ppo"])
def test_plans_see_the_batch_that_the_learner_gets(tiny, agent):
    recipe = tiny() if agent == "dqn" else Recipe("ppo", "Pendulum-v1", {"num_envs": 3})
    experiment = recipe.experiment()
    with components.make_environment(experiment, 0) as environment:
        made = components.make(experiment, environment)
        made.actor.observe_first(timestep := environment.reset())
        while not made.replay.can_sample():
            action = made.actor.select_action(timestep.observation)
            timestep = environment.step(action)
            made.actor.observe(action, timestep)
        expected = dispatch.without_keys(made.replay.sample())
        partition = launch.Partition(pt.Mesh({"data": 1}), pt.parse_schedule("batch:data"))
        found = planning.plan(dataclasses.replace(experiment, partition=partition))
    planned = [value for value in found.graph.program.inputs if value.path.startswith("sample")]
    shapes = [(x.shape, jax.dtypes.canonicalize_dtype(x.dtype)) for x in jax.tree.leaves(expected)]
    assert [(value.shape, value.dtype) for value in planned] == shapes


def test_help_names_every_field_of_the_config(capsys):
    with pytest.raises(SystemExit):
        main(["train", "dqn", "--help"])
    output = capsys.readouterr().out
    assert "--config.samples_per_insert VALUE" in output
    assert "Units of the MLP's hidden layers" in " ".join(output.split())
    assert "default: 256,256" in " ".join(output.split())


def _start(arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "troupe", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def _steps_of_rows(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["actor_steps"] for line in lines]


def _saved_steps(run):
    """Actor steps of the newest checkpoint; 0 before the first."""
    manifests = sorted(run.glob("checkpoints/checkpoint-*/manifest.json"))
    return json.loads(manifests[-1].read_text())["counters"]["actor_steps"] if manifests else 0


LONG = [*SHORT[:4], "--steps", "10000000", "--evaluate-every", "500", *SHORT[8:]]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_process_is_stopped_or_killed_and_goes_on(tmp_path, number, code):
    out = str(tmp_path / "run")
    process = _start([*LONG, "--out", out, "--checkpoint-every", "0.2"])
    try:
        evaluations = 0
        for line in process.stdout:
            evaluations += line.startswith("evaluation")
            if evaluations >= 3 and (saved := _saved_steps(tmp_path / "run")):
                break
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code, error
    if number != signal.SIGKILL:
        assert error.startswith("troupe: stopped at ")
        assert error.count("\n") == 1
    assert not (tmp_path / "run" / "result.json").exists()
    killed_at = _steps_of_rows(tmp_path / "run")[-1]
    budget = killed_at + 300
    assert main(["resume", out, "--steps", str(budget)]) == 0
    lines = (tmp_path / "run" / "logs" / "main.log").read_text().splitlines()
    (resumed,) = [line for line in lines if "goes on in" in line]
    resumed_at = int(re.search(r"at ([\d,]+) actor steps", resumed).group(1).replace(",", ""))
    assert resumed_at >= saved  # Nothing that was in a checkpoint is lost.
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["actor_steps"] == budget
    steps = _steps_of_rows(tmp_path / "run")
    assert steps == sorted(steps)
    evaluated = [entry["actor_steps"] for entry in result["evaluation"]]
    assert evaluated == [*range(500, budget, 500), budget]
