"""The page itself: tables, pictures and commands as Markdown."""

from __future__ import annotations

import os
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ...launch.errors import RequestError
from . import figures
from .again import command
from .runs import Curve, Entry
from .summary import Scaling, Together, by_environment, estimate, scales, together

_NAME = "results.md"
_PICTURES = {
    "returns": "Returns",
    "curves": "Learning curves",
    "times": "Learning curves over seconds of training",
    "profiles": "Performance profiles",
}
_SECONDS = "seconds of training"


def write(
    entries: Sequence[Entry],
    folder: str | os.PathLike[str],
    title: str,
    preface: Sequence[str] = (),
) -> pathlib.Path:
    """Writes the page and its pictures.

    Args:
      entries: of at least one run.
      folder: made where it is not there; what an earlier page left in it is written over.
      title: of the page.
      preface: lines after the title.

    Returns:
      The file of the page.

    Raises:
      RequestError: if the folder cannot be written.
    """
    path = pathlib.Path(folder)
    found = scales(entries)
    everywhere = together(entries, found)
    try:
        path.mkdir(parents=True, exist_ok=True)
        figures.draw_returns(entries, path / "returns.png")
        figures.draw_curves(
            entries,
            path / "curves.png",
            lambda one: [seed.curve(one.clock) for seed in one.seeds],
            lambda one: one.clock.words,
        )
        pictures = dict(_PICTURES)
        timed = [one for one in entries if all(seed.curve_in_time() for seed in one.seeds)]
        if timed:
            figures.draw_curves(timed, path / "times.png", _in_time, lambda _: _SECONDS)
        else:
            del pictures["times"]  # Of runs that kept no metrics.
        figures.draw_profiles(entries, everywhere, path / "profiles.png")
        text = "\n".join(_lines(entries, found, everywhere, title, preface, pictures))
        (path / _NAME).write_text(text + "\n")
    except OSError as error:
        reason = error.strerror or error
        raise RequestError(f"cannot write into {path}: {reason}; name another --out.") from error
    return path / _NAME


def _lines(
    entries: Sequence[Entry],
    found: Mapping[str, Scaling],
    everywhere: Sequence[Together],
    title: str,
    preface: Sequence[str],
    pictures: Mapping[str, str],
) -> Iterator[str]:
    runs = sum(len(one.seeds) for one in entries)
    yield f"# {title}"
    yield from ("", *preface)
    if preface:
        yield ""
    yield (
        f"{_count(runs, 'run')}, {len(found)} environment{'s' * (len(found) > 1)}. The return of a "
        "run is the mean over the episodes of its last evaluation. Means over seeds are "
        "interquartile means, with 95 % intervals by the stratified bootstrap "
        "([Agarwal et al., 2021](https://arxiv.org/abs/2108.13264)). One seed has none; of two or "
        "three an interval says little: it cannot reach beyond the worst and the best of them."
    )
    for env, some in by_environment(entries).items():
        yield from ("", f"## {env}", "")
        yield from table([_row(one) for one in some])
    if everywhere:
        yield from ("", "## All environments", "")
        yield from table(
            [
                {"entry": one.name, "runs": str(sum(map(len, one.scores))), **_mean(one.scores)}
                for one in everywhere
            ]
        )
        places = "; ".join(f"{env} {one.zero:.6g} and {one.one:.6g}" for env, one in found.items())
        yield ""
        yield (
            "Returns are scaled, from the lowest evaluation of any run (0) to the target, or where "
            f"there is none to the best run (1): {places}."
        )
    for name, words in pictures.items():
        yield from ("", f"![{words}]({name}.png)")
    yield from ("", "## Commands", "")
    for one in entries:
        yield f"{one.name} on {one.env}:"
        yield from ("", "```", _command(one), "```", "")
    yield f"Versions: {_versions(entries)}."


def _in_time(one: Entry) -> list[Curve]:
    """The curves of the seeds, each evaluation at the median of its seconds over all seeds.

    Seeds that ran at other speeds have few seconds in common, or none.
    """
    curves = [curve for seed in one.seeds if (curve := seed.curve_in_time()) is not None]
    shortest = min(len(seconds) for seconds, _ in curves)
    seconds = np.median([curve[0][:shortest] for curve in curves], axis=0)
    return [(seconds, means[:shortest]) for _, means in curves]


def _row(one: Entry) -> dict[str, str]:
    """Returns the row of a table for an entry in one environment, by column."""
    returns = one.returns
    reached = "" if one.target is None else f"{sum(returns >= one.target)} of {len(returns)}"
    steps = [seed.result[one.clock.name] for seed in one.seeds]
    seconds = [seed.result["train_seconds"] for seed in one.seeds]
    return {
        "entry": one.name,
        "seeds": str(len(returns)),
        **_mean([returns]),
        "worst and best": f"{returns.min():.1f}, {returns.max():.1f}",
        "target": "" if one.target is None else f"{one.target:g}",
        "reached": reached,
        "steps": f"{statistics.median(steps):,.0f} {one.clock.words}",
        _SECONDS: f"{statistics.median(seconds):,.0f}",
    }


def _mean(strata: Sequence) -> dict[str, str]:
    found = estimate(strata)
    digits = 1 if max(abs(found.low), abs(found.high)) >= 10 else 3
    several = any(len(one) > 1 for one in strata)
    interval = f"{found.low:.{digits}f} to {found.high:.{digits}f}" if several else ""
    return {"interquartile mean": f"{found.mean:.{digits}f}", "95 % interval": interval}


def table(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Rows with the same columns; columns in which nothing stands are left out."""
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        yield f"| {' | '.join(row[name].replace('|', ' ') for name in columns)} |"


def _command(one: Entry) -> str:
    found = command(one.seeds[0].config, [seed.number for seed in one.seeds])
    if found is not None:
        return found
    where = ", ".join(str(seed.directory.path) for seed in one.seeds)
    return f"# no command of today's asks for it (begun in Python, or settings changed): {where}"


def _versions(entries: Sequence[Entry]) -> str:
    """The versions of all packages in these runs, as text."""
    found: dict[str, dict[str, None]] = {}
    for one in entries:
        for seed in one.seeds:
            for package, version in seed.result["versions"].items():
                found.setdefault(package, {})[version] = None
    return ", ".join(f"{package} {' and '.join(versions)}" for package, versions in found.items())


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
