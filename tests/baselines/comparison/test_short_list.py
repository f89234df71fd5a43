"""The short list: its rows, and fresh runs against them."""

import pytest

from troupe.baselines.comparison import runs, short_list
from troupe.baselines.comparison.__main__ import main
from troupe.baselines.returns import ledger
from troupe.baselines.returns.figures import Figures


@pytest.fixture
def final(tmp_path, monkeypatch):
    """What every run comes to, by environment; the ledger is one of its own."""
    monkeypatch.setattr(ledger, "FOLDER", tmp_path / "ledger")
    monkeypatch.chdir(tmp_path)
    found = {one.env: one.target for one in short_list.TASKS}

    def run(recipe, seeds, folder, reporter, parallel=1):
        folder.mkdir(parents=True, exist_ok=True)
        return [Figures(found[recipe.env], 0.0, 1.0)] * seeds

    monkeypatch.setattr(runs, "run", run)
    return found


def test_a_change_is_told_from_the_newest_rows(final, tmp_path, capsys):
    assert main([]) == 2
    error = capsys.readouterr().err
    assert "the ledger has no row of ppo on jax:CartPole-v1, compiled" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()
    assert main(["--record"]) == 0
    assert len([*(tmp_path / "ledger").iterdir()]) == len(short_list.TASKS)
    assert main([]) == 0
    printed = capsys.readouterr().out
    for one in short_list.TASKS:
        assert f"{one.name}: equivalent, after 30 seeds in pairs" in printed
    final["jax:Catch-v0"] = -0.5
    capsys.readouterr()
    assert main(["--only", "dqn-Catch-v0"]) == 1
    assert "dqn-Catch-v0: different, after 30 seeds in pairs: final -1.5" in capsys.readouterr().out


def test_what_is_not_on_the_list_is_refused(final, capsys):
    assert main(["--only", "dqn-Pong"]) == 2
    assert "not on the short list, which has ppo-CartPole-v1, dqn-Catch-v0" in (
        capsys.readouterr().err
    )


def test_the_ledger_of_the_package_has_rows_of_the_short_list():
    """Of the very settings: a change of them needs rows of its own."""
    if not ledger.FOLDER.exists():
        pytest.skip("a wheel has no ledger")
    for one in short_list.TASKS:
        assert len(ledger.newest(one.recipe()).seeds) >= short_list.SEEDS
