"""Comparisons with other code: which runs, and what is refused."""

import json
import subprocess
import sys

import pytest

from troupe.baselines import checkout
from troupe.baselines.command.line import main
from troupe.baselines.comparison.elsewhere import Elsewhere
from troupe.baselines.comparison.request import read
from troupe.launch.errors import RequestError

SMALL = [
    *("--config.hidden_sizes", "4", "--config.batch_size", "4", "--config.min_replay_size", "16"),
    *("--config.steps_per_dispatch", "1", "--steps", "60", "--target", "1", "--batch", "5"),
]
COMMAND = ["compare", "dqn", "--env", "jax:Catch-v0", "--scales", "one-process"]

requires_checkout = pytest.mark.skipif(
    not (checkout.ROOT / ".git").exists(), reason="no commit: this is no checkout"
)


def commit(folder, **files):
    """Commits files, and returns the hash."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    git = ["git", "-c", "user.name=a", "-c", "user.email=b@c"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], cwd=folder, check=True)
    return checkout.git("it is tested", "rev-parse", "HEAD").decode().strip()


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(checkout, "ROOT", tmp_path)
    return tmp_path


def test_a_commit_is_its_files_and_its_imports_are_of_them(root, tmp_path):
    line = "import os; print('of the past', flush=True)"
    found = commit(root, __init__="", baselines="", other=line)
    (root / "other.py").write_text("now")
    there = Elsewhere.parse("HEAD")
    assert there == Elsewhere(found, sys.executable)
    assert there.name == f"commit {found[:12]}"
    words = rf"commit {found[:12]} does not run: .*baselines"
    with pytest.raises(RequestError, match=words), there.installed():
        pass


@pytest.mark.parametrize("text", ["nope", "HEAD~1", "/no/such/python"])
def test_what_is_no_commit_is_refused(root, text):
    commit(root, __init__="")
    with pytest.raises(RequestError, match=f"no commit '{text}'.* or the path of a Python"):
        Elsewhere.parse(text)


def test_where_there_is_no_checkout_it_is_said(root):
    with pytest.raises(RequestError, match="is no checkout of the package"):
        Elsewhere.parse("HEAD")


def test_a_commit_that_does_not_build_is_refused_before_anything_runs(root, tmp_path, capsys):
    commit(root, __init__="def broken(:")
    out = tmp_path / "out"
    assert main([*COMMAND, *SMALL, "--against", "HEAD", "--out", str(out)]) == 2
    assert "does not run: SyntaxError" in capsys.readouterr().err
    assert not out.exists()


@requires_checkout
def test_two_references_or_two_scales_are_refused(tmp_path, capsys):
    out = ["--out", str(tmp_path / "out")]
    assert main([*COMMAND, *SMALL, "--against", "HEAD", "--ledger", *out]) == 2
    assert "--ledger and --against" in capsys.readouterr().err
    assert main([*COMMAND, "threads", *SMALL, "--against", "HEAD", *out]) == 2
    assert "is compared with one scale, not with 2" in capsys.readouterr().err


@pytest.mark.long
def test_runs_of_another_interpreter_are_compared_and_gone_on_with(made_up, tmp_path, capsys):
    """The interpreter is this one; what runs here is made up."""
    out = tmp_path / "out"
    command = [*COMMAND, *SMALL, "--against", sys.executable, "--out", str(out)]
    assert main([*command, "--seeds", "5"]) == 1
    runs = sorted(str(path.parent.relative_to(out)) for path in out.rglob("result.json"))
    folders = "against/0", "one-process"
    assert runs == sorted(f"{folder}/{seed}" for folder in folders for seed in range(5))
    found = json.loads((out / "comparison.json").read_text())["figures"]
    first, here = f"one-process of {sys.executable}", "one-process"
    assert list(found) == [first, here]
    results = [json.loads((out / f"against/0/{seed}/result.json").read_text()) for seed in range(5)]
    finals = [one["evaluation"][-1]["mean"] for one in results]
    assert [one["final"] for one in found[first]] == finals
    assert read(out).against == Elsewhere(None, sys.executable)
    assert f"dqn, {sys.executable}" in (out / "report" / "results.md").read_text()
    (out / "against/0/3/result.json").unlink()
    kept = {path: path.stat().st_mtime_ns for path in out.rglob("against/*/*/result.json")}
    assert len(kept) == 4
    assert main(["resume", str(out)]) == 1
    assert (out / "against/0/3/result.json").exists()
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    config = out / "against/0/2/config.json"
    other = json.loads(config.read_text())
    other["config"]["batch_size"] = 8
    config.write_text(json.dumps(other))
    capsys.readouterr()
    assert main(["resume", str(out)]) == 2
    assert "settings: config.batch_size was 8 and is 4" in capsys.readouterr().err
