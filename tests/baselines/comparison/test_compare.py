"""The command: what it runs, what it goes on with, and what it refuses."""

import dataclasses
import json
import pathlib
import shlex
import shutil

import numpy as np
import pytest

from troupe.baselines import checkout
from troupe.baselines.command.line import main
from troupe.baselines.comparison import margin, runs
from troupe.baselines.comparison.random_return import random_return
from troupe.baselines.comparison.request import read
from troupe.baselines.report import history
from troupe.baselines.returns import answers, ledger
from troupe.baselines.returns.figures import Figures
from troupe.baselines.returns.ledger import LedgerRow
from troupe.baselines.tuned import Tuned
from troupe.launch.clock import ACTOR_STEPS, LEARNER_STEPS
from troupe.launch.errors import Interrupted, RequestError
from troupe.launch.experiment import Evaluation
from troupe.launch.specification.recipe import Recipe

SMALL = {"hidden_sizes": (4,), "batch_size": 4, "min_replay_size": 16, "steps_per_dispatch": 1}
TUNED = Tuned(
    "dqn",
    "jax:Catch-v0",
    {**SMALL, "samples_per_insert": 1.0},
    steps=60,
    target=1.0,
    evaluation_every=30,
)
COMMAND = ("compare", "dqn", "--env", "jax:Catch-v0", "--batch", "5")
ONE_DEVICE, TWO_DEVICES = SCALES = "one-process", "one-process@data=2@batch:data"


def compare(out, *arguments):
    return main([*COMMAND, *arguments, "--out", str(out)], [TUNED])


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A comparison that has come to its greatest number of seeds."""
    out = tmp_path_factory.mktemp("compare") / "out"
    assert compare(out, "--scales", *SCALES, "--seeds", "5") == 1
    return out


@pytest.fixture
def asked(tmp_path, made_up):
    """A comparison whose runs all came to the same."""
    out = tmp_path / "asked"
    assert compare(out, "--scales", *SCALES, "--seeds", "5") == 1
    return out


def outcome(out):
    return json.loads((out / "comparison.json").read_text())


def results(out):
    """When the result of each run was written."""
    return {
        str(path.relative_to(out)): path.stat().st_mtime_ns for path in out.rglob("result.json")
    }


def test_a_mesh_of_more_devices_than_there_are_is_refused_before_anything_runs(tmp_path, capsys):
    out = tmp_path / "out"
    assert compare(out, "--scales", ONE_DEVICE, "one-process@data=512") == 2
    assert "mesh data=512 needs 512 devices; jax has 8" in capsys.readouterr().err
    assert not out.exists()


def test_answers_are_kept_with_the_command_that_makes_them_again(
    made_up, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(answers, "FOLDER", tmp_path / "verdicts")
    monkeypatch.setattr(ledger, "commit", lambda: "aaa+")
    monkeypatch.setattr("troupe.baselines.report.again.find", lambda agent, env: TUNED)
    out, again = tmp_path / "out", tmp_path / "again"
    flags = ["--seeds", "30", "--batch", "15", "--margin", "20%", "--config.discount", "0.9"]
    assert compare(out, "--scales", *SCALES, *flags, "--record") == 0
    (kept,) = answers.read(tmp_path / "verdicts")
    assert "kept in" in capsys.readouterr().err
    assert (kept.agent, kept.env, kept.first, kept.commit) == (
        *("dqn", "jax:Catch-v0", ONE_DEVICE, "aaa+"),
    )
    assert kept.outcome["verdicts"][TWO_DEVICES]["answer"] == "equivalent"
    assert len(kept.outcome["figures"][TWO_DEVICES]) == 30
    words = shlex.split(kept.command.replace("DIR", str(again)))
    assert words[0] == "troupe"
    assert main(words[1:], [TUNED]) == 0
    first, second = (json.loads((one / "compare.json").read_text()) for one in (out, again))
    assert second["rule"].pop("margin") == pytest.approx(first["rule"].pop("margin"), rel=1e-5)
    assert second == first
    rows = tmp_path / "rows"
    rows.mkdir()
    recipe = read(out).recipe
    row = LedgerRow.of(recipe, {0: Figures(0.5, 0.4, 1.0)}, "bbb")
    ledger.append(row, recipe, rows)
    page = history.write(rows, tmp_path / "page").read_text()
    assert "## dqn on jax:Catch-v0, compared with one-process" in page
    assert f"| `{TWO_DEVICES}` | equivalent | 30 |" in page


def test_seeds_that_are_kept_are_not_run_again(made_up, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(answers, "FOLDER", tmp_path / "verdicts")
    flags = ["--batch", "15", "--margin", "20%", "--record"]

    def record(name, commit, *more):
        monkeypatch.setattr(ledger, "commit", lambda: commit)
        code = compare(tmp_path / name, "--scales", *SCALES, *flags, *more)
        (kept,) = answers.read(answers.FOLDER)
        return code, kept, sorted({int(run.split("/")[1]) for run in results(tmp_path / name)})

    code, kept, ran = record("first", "aaa", "--seeds", "15")
    assert (code, kept.commits, ran) == (1, ("aaa",), [*range(15)])
    # On another machine, and there once more.
    for _ in range(2):
        code, kept, ran = record("second", "bbb", "--seeds", "30")
        assert (code, kept.commits, ran) == (0, ("aaa", "bbb"), [*range(15, 30)])
        assert "not run again; they are of aaa" in capsys.readouterr().out
        assert kept.outcome["verdicts"][TWO_DEVICES]["answer"] == "equivalent"
        assert len(kept.figures()[ONE_DEVICE]) == 30
    # All of them, on a third one.
    code, kept, ran = record("third", "ccc", "--seeds", "30")
    assert (code, kept.commits, ran) == (0, ("aaa", "bbb"), [])
    # Of other scales: those that are the same are known, and both answers are kept.
    monkeypatch.setattr(ledger, "commit", lambda: "eee")
    more = (*SCALES, "one-process@data=4")
    compare(tmp_path / "more", "--scales", *more, *flags, "--seeds", "30")
    assert {str(pathlib.Path(run).parts[0]) for run in results(tmp_path / "more")} == {
        "one-process-data=4"
    }
    first, second = sorted(answers.read(answers.FOLDER), key=lambda one: len(one.scales))
    assert (first.scales, second.scales) == (SCALES, more)
    assert first.figures()[TWO_DEVICES] == second.figures()[TWO_DEVICES]
    assert (first.commits, second.commits) == (("aaa", "bbb"), ("aaa", "bbb", "eee"))
    name = "dqn-jax_Catch_v0-one_process-one_process_data_2_batch_data"
    assert {path.name for path in answers.FOLDER.iterdir()} == {
        f"{name}.json",
        f"{name}-one_process_data_4.json",
    }
    (answers.FOLDER / f"{name}-one_process_data_4.json").unlink()
    # What was asked for otherwise is replaced.
    code, kept, ran = record("fourth", "ddd", "--seeds", "15", "--steps", "61")
    assert (kept.commits, ran) == (("ddd",), [*range(15)])


def test_answers_are_not_kept_where_there_is_no_checkout(made_up, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(checkout, "ROOT", tmp_path)
    assert compare(tmp_path / "out", "--scales", *SCALES, "--record") == 2
    assert "is no checkout" in capsys.readouterr().err


@pytest.mark.long
def test_every_seed_runs_at_every_scale(begun):
    runs = sorted(str(pathlib.Path(name).parent) for name in results(begun))
    folders = "one-process", "one-process-data=2-batch-data"
    assert runs == sorted(f"{folder}/{seed}" for folder in folders for seed in range(5))
    found = outcome(begun)
    assert found["looks"] == [5]
    assert found["target"] == 1.0
    assert found["rule"]["margin"] == pytest.approx(0.1 * (1.0 - found["random"]))
    assert found["rule"]["span"] == pytest.approx(1.0 - found["random"])
    verdict = found["verdicts"][TWO_DEVICES]
    assert verdict["answer"] == "not enough seeds"
    assert verdict["paired"]
    assert verdict["needed"] > 5
    finals = {}
    for folder, scale in zip(folders, SCALES, strict=True):
        evaluations = [
            json.loads((begun / folder / str(seed) / "result.json").read_text())["evaluation"]
            for seed in range(5)
        ]
        finals[scale] = [rows[-1]["mean"] for rows in evaluations]
        assert [one["final"] for one in found["figures"][scale]] == finals[scale]
        first, last = (row["mean"] for row in evaluations[2])  # At half of the budget, and its end.
        area = found["figures"][scale][2]["area"]
        assert area == pytest.approx((first + (first + last) / 2) / 2)
    shown = verdict["metrics"]["final"]["difference"]
    assert shown == pytest.approx(np.mean(finals[TWO_DEVICES]) - np.mean(finals[ONE_DEVICE]))


@pytest.mark.long
def test_it_goes_on_with_more_seeds_and_after_a_kill(begun, begun_alone, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(begun, out)
    before = results(out)
    assert main(["resume", str(out)], [TUNED]) == 1
    assert results(out) == before
    assert "(times.png)" in (out / "report" / "results.md").read_text()
    printed = capsys.readouterr()
    assert "would do if it is equal (--seeds" in printed.out
    assert f"returns at {TWO_DEVICES} are not shown to equal those at one-process" in printed.err
    # One run died before its first checkpoint, one before its result.
    shutil.rmtree(out / "one-process" / "1" / "checkpoints")
    for seed in "1", "2":
        (out / "one-process" / seed / "result.json").unlink()
    assert compare(out, "--scales", *SCALES, "--seeds", "10", "--json") == 1
    after = results(out)
    assert len(after) == 20
    assert {n for n, time in before.items() if after[n] != time} == {
        f"one-process/{seed}/result.json" for seed in "12"
    }
    found = outcome(out)
    assert json.loads(capsys.readouterr().out) == found
    assert found["looks"] == [5, 10]
    assert found["figures"][ONE_DEVICE][:5] == [
        {**one, "seconds": found["figures"][ONE_DEVICE][i]["seconds"]}
        for i, one in enumerate(outcome(begun)["figures"][ONE_DEVICE])
    ]
    assert read(out).seeds == 10
    assert main(["resume", str(out)], [TUNED]) == 1


def test_seeds_are_added_until_all_scales_have_their_answer(asked, capsys):
    assert compare(asked, "--scales", *SCALES, "--seeds", "60") == 0
    found = outcome(asked)
    assert found["looks"] == [5, 10, 15, 20, 25, 30]
    assert found["verdicts"][TWO_DEVICES]["answer"] == "equivalent"
    assert len(results(asked)) == 60
    printed = capsys.readouterr().out
    assert "after 25 seeds: one-process@data=2@batch:data  not enough seeds: 30" in printed
    assert "equivalent, after 30 seeds in pairs: final +0 (between -0.1" in printed


def test_the_page_has_the_answers_the_pictures_and_the_commands(asked, capsys):
    assert main(["resume", str(asked)], [TUNED]) == 1
    assert f"and {asked / 'report' / 'results.md'}" in capsys.readouterr().out
    text = (asked / "report" / "results.md").read_text()
    assert text.startswith("# dqn on jax:Catch-v0: one-process@data=2@batch:data\n")
    assert f"| `{TWO_DEVICES}` | not enough seeds: 30 would do if it is equal" in text
    assert "| 5 in pairs | final | 0.5 | +0 |" in text
    assert "to the target of 1." in text
    assert "for seed in 0 1 2 3 4; do troupe train dqn --env jax:Catch-v0 " in text
    assert "--mesh data=2 --schedule batch:data" in text
    for name in ("returns", "curves", "profiles"):
        assert (asked / "report" / f"{name}.png").stat().st_size > 0
    assert "times.png" not in text  # These runs kept no metrics.


def test_a_signal_names_the_whole_comparison(asked, monkeypatch, capsys):

    def stopped(request, folder, reporter):
        raise Interrupted(2, "one of the runs says so")

    monkeypatch.setattr(runs.grid, "conduct", stopped)
    assert main(["resume", str(asked)], [TUNED]) == 130
    assert capsys.readouterr().err == f"troupe: stopped; go on with `troupe resume {asked}`.\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--margin", "30%"), "rule.margin was "),
        (("--batch", "6", "--seeds", "6"), "rule.batch was 5 and is 6"),
        (("--steps", "80"), "recipe.steps was 60 and is 80"),
        (("--config.learning_rate", "0.5"), "recipe.config.learning_rate was "),
        (("--seed", "100"), "recipe.seed was 0 and is 100"),
    ],
    ids=lambda one: one if isinstance(one, str) else one[0],
)
def test_what_was_named_before_is_kept(asked, arguments, words, capsys):
    before = results(asked)
    assert compare(asked, "--scales", *SCALES, "--seeds", "5", *arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "name another --out" in error
    assert error.count("\n") == 1
    assert results(asked) == before


def test_a_run_of_other_settings_is_refused(asked, capsys):
    out = asked
    config = out / "one-process" / "3" / "config.json"
    values = json.loads(config.read_text())
    values["config"]["n_step"] = 7
    config.write_text(json.dumps(values))
    assert main(["resume", str(out)], [TUNED]) == 2
    error = capsys.readouterr().err
    assert f"{out / 'one-process' / '3'} holds a run of other settings: config.n_step" in error
    assert error.count("\n") == 1


def test_a_resumed_comparison_takes_no_flags_of_one_run(asked, capsys):
    assert main(["resume", str(asked), "--steps", "100"], [TUNED]) == 2
    assert "--steps is of one run" in capsys.readouterr().err


@pytest.fixture
def recorded(asked, tmp_path, monkeypatch):
    """Adds a row of so many seeds, with these final returns, to a ledger of its own."""
    monkeypatch.setattr(ledger, "FOLDER", tmp_path / "ledger")

    def add(finals, **changed):
        recipe = dataclasses.replace(read(asked).recipe, **changed)
        seeds = {seed: Figures(final, 0.5, 1.0) for seed, final in enumerate(finals)}
        ledger.append(LedgerRow.of(recipe, seeds, "abc"), recipe)

    return add


def test_runs_are_compared_with_the_newest_row(recorded, tmp_path, capsys):
    recorded([-1.0] * 30)
    recorded([0.5] * 30)
    words = ("--scales", ONE_DEVICE, "--ledger")
    assert compare(tmp_path / "same", *words) == 0
    printed = capsys.readouterr().out
    assert "one-process  equivalent, after 30 seeds in pairs: final +0" in printed
    assert (tmp_path / "same" / "report" / "results.md").exists()
    assert main(["resume", str(tmp_path / "same")], [TUNED]) == 0
    recorded([-1.0] * 30)
    capsys.readouterr()
    assert compare(tmp_path / "changed", *words) == 1
    error = capsys.readouterr().err
    assert error == (
        "troupe: the returns at one-process differ from those at one-process of abc.\n"
    )
    assert compare(tmp_path / "same", *words) == 2
    assert "reference.seeds.0.final was 0.5 and is -1.0" in capsys.readouterr().err


def test_runs_have_the_settings_of_the_row(recorded, tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "FOLDER", tmp_path / "verdicts")
    monkeypatch.setattr(ledger, "commit", lambda: "abc")
    evaluation = Evaluation(every=40, episodes=2, final_episodes=3)
    config = {**SMALL, "n_step": 3}
    recorded([0.5] * 5, steps=80, evaluation=evaluation, config=config)
    out = tmp_path / "out"
    words = ("--scales", ONE_DEVICE, "--ledger", "--config.discount", "0.99", "--margin", "20%")
    assert compare(out, *words, "--record") in (0, 1)
    recipe = read(out).recipe
    assert (recipe.steps, recipe.evaluation) == (80, evaluation)
    assert recipe.config["n_step"] == 3
    (kept,) = answers.read(tmp_path / "verdicts")
    again = tmp_path / "again"
    assert main(shlex.split(kept.command.replace("DIR", str(again)))[1:], [TUNED]) in (0, 1)
    assert read(again).recipe == recipe


@pytest.mark.parametrize(
    ("finals", "changed", "arguments", "words"),
    [
        ([0.5] * 10, {}, ("--seeds", "20"), "has 10 seeds, and not seed 10; take fewer --seeds"),
        ([0.5] * 10, {"steps": 80}, ("--steps", "60"), "other settings: steps was 80 and is 60"),
        ([0.5] * 10, {"launch": "compiled"}, (), "the ledger has no row of dqn on jax:Catch-v0"),
        ([0.5] * 4, {}, (), "--seeds 4 is less than a --batch of 5"),
    ],
    ids=["seeds", "settings", "launch", "few"],
)
def test_rows_that_do_not_fit_are_refused(
    finals, changed, arguments, words, recorded, tmp_path, capsys
):
    recorded(finals, **changed)
    capsys.readouterr()
    out = tmp_path / "out"
    assert compare(out, "--scales", ONE_DEVICE, "--ledger", *arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_a_row_is_compared_with_one_scale(recorded, tmp_path, capsys):
    recorded([0.5] * 10)
    assert compare(tmp_path / "out", "--scales", *SCALES, "--ledger") == 2
    assert "compared with one scale, not with 2" in capsys.readouterr().err


UNKNOWN = Tuned("dqn", "jax:Catch-v0", SMALL, steps=60)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--scales one-process", "1 scale is nothing to compare"),
        ("--scales one-process threads --batch 1 --seeds 1", "1 seed between looks"),
        ("--scales one-process threads --seeds 4", "--seeds 4 is less than a --batch of 5"),
        ("--scales one-process threads one-process", "are the same"),
        ("--scales one-process once", "'once' is not KIND"),
        ("--scales one-process one-process:2", "--actors needs --launch"),
        ("--scales one-process one-process@data=2@bath:data", "no tactic 'bath'"),
        ("--scales one-process compiled --margin 0", "a margin of 0 is met by no number"),
        ("--scales one-process compiled --margin 0%", "a margin of 0% is met by no number"),
        ("--scales one-process compiled --margin -3", "a margin of -3 is met by no number"),
        ("--scales one-process compiled --margin nan", "a margin of nan is met by no number"),
        ("--scales one-process compiled --margin wide", "'wide' is no margin"),
        ("--scales one-process compiled --target -1.5", "is not above the -0."),
    ],
)
def test_what_cannot_be_compared(arguments, words, tmp_path, capsys):
    out = tmp_path / "runs"
    assert compare(out, *arguments.split()) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_a_task_without_a_target_needs_a_margin(tmp_path, capsys):
    scales = ("--scales", *SCALES, "--out", str(tmp_path / "out"))
    assert main([*COMMAND, *scales], [UNKNOWN]) == 2
    error = capsys.readouterr().err
    assert "dqn on jax:Catch-v0 has no target return" in error
    assert "name one with --target, or a --margin such as 20" in error
    assert error.count("\n") == 1


def test_a_compiled_scale_needs_an_environment_in_jax(tmp_path, capsys):
    """Said before the first scale has run."""
    out = tmp_path / "out"
    scales = ("--scales", "one-process", "compiled", "--margin", "1", "--out", str(out))
    assert main(["compare", "dqn", "--env", "CartPole-v1", *scales]) == 2
    assert "jax:" in capsys.readouterr().err
    assert not out.exists()


def test_a_named_margin_is_a_tenth_of_the_range():
    rule, random = margin.make_rule(Recipe("dqn", "CartPole-v1"), "20", None, 10)
    assert (rule.margin, rule.span, random) == (20.0, 200.0, None)


@pytest.mark.parametrize(
    ("env", "low", "high"),
    [("CartPole-v1", 15, 30), ("jax:CartPole-v1", 15, 30), ("Pendulum-v1", -1500, -1000)],
)
def test_the_return_of_random_actions(env, low, high):
    recipe = Recipe("dqn" if "Cart" in env else "sac", env)
    assert low < random_return(recipe) < high
    assert random_return(recipe) == random_return(recipe)


def test_the_figures_of_a_run():
    rows = [
        {"actor_steps": steps, "learner_steps": steps // 2, "mean": mean}
        for steps, mean in ((100, 0.0), (200, 10.0), (400, 20.0))
    ]
    result = {"evaluation": rows, "train_seconds": 3.0}
    expected = (100 * 0.0 + 100 * 5.0 + 200 * 15.0) / 400
    for clock in (ACTOR_STEPS, LEARNER_STEPS):
        assert Figures.of(result, clock, "run") == Figures(20.0, pytest.approx(expected), 3.0)
    one = {**result, "evaluation": rows[-1:]}
    assert Figures.of(one, ACTOR_STEPS, "run") == Figures(20.0, 20.0, 3.0)
    for mean in (None, float("nan")):
        broken = {**result, "evaluation": [{**rows[0], "mean": mean}]}
        with pytest.raises(RequestError, match="run/3 has an evaluation without a finite return"):
            Figures.of(broken, ACTOR_STEPS, "run/3")
