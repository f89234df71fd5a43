"""Whether returns are equal: the statistics, and the command that runs what they are of."""

import itertools
import json
import math

import numpy as np
import pytest

from troupe.baselines.command.line import main
from troupe.baselines.comparison import (
    check,
    compare,
    detectable,
    min_seeds,
    permutation_test,
    table,
)
from troupe.baselines.scales import Scale, parse_scales
from troupe.baselines.tuned import Tuned
from troupe.launch.errors import RequestError


def test_few_seeds_are_permuted_exactly():
    one, other = np.array([1.0, 5.0, 2.0, 4.0]), np.array([3.0, 9.0, 8.0, 7.0])
    both = np.concatenate([one, other])
    observed = abs(one.mean() - other.mean())
    as_large = [
        abs(both[list(chosen)].mean() - np.delete(both, list(chosen)).mean()) >= observed - 1e-9
        for chosen in itertools.combinations(range(8), 4)
    ]
    found = permutation_test(one, other, np.random.default_rng(0))
    assert found == pytest.approx(np.mean(as_large))


def test_many_seeds_are_permuted_at_random():
    random = np.random.default_rng(0)
    one, other = random.normal(size=(2, 30))
    assert permutation_test(one, one, random) == 1.0
    assert permutation_test(one, other + 10, random) == pytest.approx(1 / 20_001)


def test_equal_scales_seldom_differ_and_others_do():
    """Of a hundred comparisons of equal scales about one in twenty may be wrong."""
    random = np.random.default_rng(1)
    wrong = 0
    for _ in range(100):
        drawn = dict(zip("abc", random.normal(size=(3, 5)), strict=True))
        wrong += any(row.differs for row in compare(drawn))
    assert wrong <= 11
    rows = compare({"first": range(6), "same": range(6), "worse": range(-20, -14)})
    assert [row.differs for row in rows] == [False, False, True]
    assert (rows[0].difference, rows[0].p) == (None, None)
    assert rows[2].difference == -20
    for row in rows:
        assert row.interval[0] <= row.mean <= row.interval[1]
    lines = table(rows).splitlines()
    assert "no difference seen" in lines[1]
    assert f"(of {rows[1].detectable:.1f} and more it would have been)" in lines[1]
    assert "difference -20.0, p = 0.002: differs" in lines[2]


def test_too_little_to_compare_is_refused():
    with pytest.raises(RequestError, match="1 scale is nothing to compare"):
        compare({"one": [1, 2, 3, 4]})
    with pytest.raises(RequestError, match=r"3 seeds at 2 scales cannot tell .* at least 4"):
        compare({"one": [1, 2, 3, 4], "other": [1, 2, 3]})


@pytest.mark.parametrize("num_scales", [2, 3, 6, 7, 20])
def test_the_fewest_seeds_are_those_that_can_tell(num_scales):
    """Every scale quite apart from the first is told from it, and with one seed less none is."""
    seeds = min_seeds(num_scales)
    apart = {str(k): 100.0 * (k > 0) + np.arange(seeds) for k in range(num_scales)}
    assert [row.differs for row in compare(apart)] == [False, *[True] * (num_scales - 1)]
    with pytest.raises(RequestError, match=f"at least {seeds}"):
        check(num_scales, seeds - 1)
    least = 2 / math.comb(2 * seeds - 2, seeds - 1)
    assert least > 0.05 / (num_scales - 1)


def test_a_difference_as_large_as_said_would_have_been_seen():
    random = np.random.default_rng(2)
    one, other = random.normal(size=(2, 5)) * [[1.0], [3.0]]
    for level in (0.05, 0.025):
        least = detectable(one, other, level, random)
        moved = other - other.mean() + one.mean()
        both = [permutation_test(one, moved + sign * least, random) for sign in (1, -1)]
        assert max(both) <= level
        less = [permutation_test(one, moved + sign * 0.9 * least, random) for sign in (1, -1)]
        assert max(less) > level
    assert detectable(one, other, 0.025, random) > detectable(one, other, 0.05, random)
    assert detectable(np.full(4, 500.0), np.full(4, 500.0), 0.05, random) == 0.0
    assert detectable(one[:3], other[:3], 0.05, random) == math.inf


def test_a_scale_named_twice_is_refused():
    assert len(parse_scales(["one-process", "threads", "threads:2"])) == 3
    with pytest.raises(RequestError, match="'threads:2' and 'threads:02' are the same"):
        parse_scales(["one-process", "threads:2", "threads:02"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one-process", ("one-process", None, None, None)),
        ("processes:4", ("processes", 4, None, None)),
        ("threads:2@data=2@batch:data", ("threads", 2, "data=2", "batch:data")),
    ],
)
def test_scales(text, expected):
    scale = Scale.parse(text)
    assert (scale.launch, scale.actors, scale.mesh, scale.schedule) == expected
    assert not set(scale.folder) & set("/:@,")


@pytest.mark.parametrize("text", ["", "process", "processes:many", "processes:", "threads@data=2"])
def test_what_is_no_scale_lists_what_is(text):
    with pytest.raises(RequestError, match="one-process, threads, processes"):
        Scale.parse(text)


TUNED = Tuned(
    "dqn", "fake/match", {"hidden_sizes": (4,), "batch_size": 4}, steps=40, evaluation_every=40
)
COMMAND = [
    *("compare", "dqn", "--env", "fake/match", "--seeds", "4", "--config.min_replay_size", "16"),
    *("--config.samples_per_insert=1", "--config.steps_per_dispatch", "1"),
]


@pytest.mark.long
def test_the_command_runs_every_seed_at_every_scale_once(capsys, tmp_path):
    out = tmp_path / "runs"
    scales = ["--scales", "one-process", "one-process@data=2@batch:data", "--out", str(out)]
    assert main([*COMMAND, *scales, "--json"], [TUNED]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["scale"] for row in rows] == scales[1:3]
    assert all(len(row["returns"]) == 4 for row in rows)
    assert json.loads((out / "comparison.json").read_text()) == rows
    results = sorted(out.glob("*/*/result.json"))
    assert [path.parent.name for path in results] == ["0", "1", "2", "3"] * 2
    written = [path.stat().st_mtime_ns for path in results]
    results[0].unlink()  # A run that was stopped goes on, and the others stay as they are.
    assert main([*COMMAND, *scales], [TUNED]) == 0
    assert "no difference seen" in capsys.readouterr().out
    assert [path.stat().st_mtime_ns for path in results][1:] == written[1:]
    assert main([*COMMAND, *scales, "--steps", "70"], [TUNED]) == 2
    assert "asked for otherwise" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("--scales one-process", "1 scale is nothing to compare"),
        ("--scales one-process threads --seeds 2", "at least 4"),
        ("--scales one-process threads one-process", "are the same"),
        ("--scales one-process threads threads:2 --seeds 4", "at least 5"),
        ("--scales one-process once", "'once' is not KIND"),
        ("--scales one-process one-process:2", "--actors needs --launch"),
        ("--scales one-process one-process@data=2@bath:data", "no tactic 'bath'"),
    ],
)
def test_what_cannot_be_compared(capsys, tmp_path, arguments, word):
    out = tmp_path / "runs"
    assert main([*COMMAND, *arguments.split(), "--out", str(out)]) == 2
    assert word in capsys.readouterr().err
    assert not out.exists()
