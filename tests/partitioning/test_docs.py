"""The walk-through prints what it says, and the table of rules is the registry's."""

import doctest
import pathlib

import jax
import pytest

from troupe.partitioning.rules import registry

DOCS = pathlib.Path(__file__).parents[2] / "docs"


class Predictions(doctest.OutputChecker):
    """Exact, but for predicted numbers, which may move by a tenth before the page is stale."""

    def check_output(self, want, got, optionflags):
        if super().check_output(want, got, optionflags | doctest.NORMALIZE_WHITESPACE):
            return True
        if "predict" not in want and "peak (" not in want:
            return False
        wanted, found = want.split(), got.split()
        return len(wanted) == len(found) and all(map(close, wanted, found))


def close(wanted, found):
    try:
        a, b = float(wanted), float(found)
    except ValueError:
        return wanted == found
    # Counts stay exact: they are small whole numbers, written without a point.
    return a == b or (("." in wanted or "e" in wanted) and abs(a - b) <= 0.1 * abs(a))


@pytest.mark.parametrize("page", ["partitioning.md", "automatic.md"])
def test_walk_through(page):
    if len(jax.devices()) < 8:
        pytest.fail("the walk-through needs 8 devices; tests/conftest.py asks for them")
    text = (DOCS / page).read_text().replace("```\n", "\n")
    test = doctest.DocTestParser().get_doctest(text, {}, page, page, 0)
    runner = doctest.DocTestRunner(checker=Predictions())
    failures = []
    runner.run(test, out=failures.append)
    assert not runner.failures, "".join(failures)
    assert runner.tries > 20


def test_table_of_rules_is_current():
    text = (DOCS / "rules.md").read_text()
    assert registry.table() in text, (
        "docs/rules.md is stale: replace its table by what `print(registry.table())` prints"
    )
