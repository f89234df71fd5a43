"""The history of the ledger."""

import dataclasses

import pytest

from troupe.baselines import checkout
from troupe.baselines.report.__main__ import main
from troupe.baselines.returns import ledger
from troupe.baselines.returns.figures import Figures
from troupe.baselines.returns.ledger import LedgerRow
from troupe.launch.specification.recipe import Recipe

CHECKOUT = (checkout.ROOT / ".git").exists()
RECIPE = Recipe("dqn", "jax:Catch-v0", launch="compiled")


@pytest.fixture
def rows(tmp_path):
    for commit, shift in (("aaa", 0.0), ("bbb+", 100.0)):
        seeds = {seed: Figures(shift + seed, shift, 7.0) for seed in range(4)}
        ledger.append(LedgerRow.of(RECIPE, seeds, commit), RECIPE, tmp_path / "rows")
    return tmp_path / "rows"


def test_a_ledger_has_a_line_for_every_commit(rows, tmp_path, capsys):
    assert main(["--ledger", str(rows), "--out", str(tmp_path / "page")]) == 0
    page = tmp_path / "page" / "history.md"
    assert capsys.readouterr().out.strip() == str(page)
    text = page.read_text()
    assert "## dqn on jax:Catch-v0, compiled" in text
    assert "| aaa | 4 | 1.5 (" in text
    assert "| bbb+ | 4 | 101.5 (" in text
    assert (tmp_path / "page" / "history.png").stat().st_size > 0
    assert not (tmp_path / "page" / "results.md").exists()


@pytest.mark.skipif(not CHECKOUT, reason="a wheel has no ledger")
def test_the_ledger_of_the_package_is_drawn(tmp_path):
    assert main(["--ledger", "--out", str(tmp_path / "page")]) == 0
    assert "## ppo on jax:CartPole-v1, compiled" in (tmp_path / "page" / "history.md").read_text()


def test_mistakes_are_told_in_one_line(rows, tmp_path, capsys):
    def refused(*arguments):
        assert main([*map(str, arguments), "--out", str(tmp_path / "page")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "there is nothing to report" in refused()
    assert "it holds no rows" in refused("--ledger", tmp_path)
    path = ledger.path_of(RECIPE, rows)
    path.write_text(path.read_text() + "{}\n")
    assert f"line 3 of {path} is no row" in refused("--ledger", rows)


def test_rows_are_kept_as_they_were(rows):
    first, second = ledger.read(ledger.path_of(RECIPE, rows))
    assert (first.commit, second.commit) == ("aaa", "bbb+")
    assert second.seeds["3"] == Figures(103.0, 100.0, 7.0)
    assert ledger.newest(RECIPE, rows) == second
    same = dataclasses.replace(RECIPE, seed=5, folders={"mine": "/somewhere"})
    assert ledger.newest(same, rows) == second


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"config": {"n_step": 4}}, "config.n_step was 1 and is 4"),
        ({"steps": 70}, "steps was 100000 and is 70"),
        ({"environment": {"rows": 7}}, "environment.rows was null and is 7"),
    ],
    ids=str,
)
def test_rows_of_other_settings_are_refused(rows, changed, words):
    with pytest.raises(ValueError, match="of commit bbb\\+ has other settings") as raised:
        ledger.newest(dataclasses.replace(RECIPE, **changed), rows)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_launch_without_a_row_is_refused(rows):
    with pytest.raises(ValueError, match="has no row of dqn on jax:Catch-v0, one-process"):
        ledger.newest(dataclasses.replace(RECIPE, launch="one-process"), rows)


@pytest.mark.skipif(not CHECKOUT, reason="no commit: this is no checkout")
def test_a_row_names_the_commit_of_the_package():
    assert len(ledger.commit().removesuffix("+")) == 12
