"""Rates of launches, one beside another: acting, starting, memory, replay, variables.

    python -m troupe.baselines.speed dqn --launch processes --actors 1 8
    python -m troupe.baselines.speed dqn --launch ray --against processes=PYTHON --actors 8

Each figure is measured in a process of its own, under the Python of its launch, in turn for one
launch and the other and so for several rounds: what else the machine has to do meets both. Judge by
the ratios, which are of the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ...agents.programs import runtime
from . import roles, wholes

_SECONDS = 600.0
"""The limit of one figure."""
WHAT = ("acting", "batches", "variables", "learner")
_MAIN = {
    "acting": "steps_per_second",
    "batches": "batches_per_second",
    "variables": "seconds_to_all",
    "learner": "ratio",
}
"""The figure of which a ratio is told."""
_LESS_IS_BETTER = ("seconds_to_all",)


def figures(what: str, kind: str, agent: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Measures one thing of one launch, in this process and those that it starts.

    Args:
      what: one of `WHAT`.
      kind: of launch, processes or ray.
      agent: name of the agent.
      settings: arguments of the function that measures it.
    """
    if what == "acting":
        return wholes.acting(kind, agent, **settings)
    measure = {
        "batches": roles.batches,
        "variables": roles.variables_cost,
        "learner": roles.learner_rates,
    }[what]
    return measure(kind, agent, **settings)


def asked(
    what: Sequence[str], step_ms: Sequence[float], actors: Sequence[int], seconds: float
) -> list[tuple[str, dict[str, Any]]]:
    """Returns the figures to measure, each with its settings."""
    rows: list[tuple[str, dict[str, Any]]] = []
    if "acting" in what:
        rows += [
            ("acting", {"step_ms": each, "actors": number, "seconds": seconds})
            for each in step_ms
            for number in actors
        ]
    if "batches" in what:
        rows += [("batches", {"steps_per_sample": k}) for k in (1, 8)]
    rows += [(name, {}) for name in ("variables", "learner") if name in what]
    return rows


def compare(
    agent: str, launches: Mapping[str, str], rows: Sequence[tuple[str, dict[str, Any]]], rounds: int
) -> list[dict[str, Any]]:
    """Measures rows in so many rounds.

    Args:
      agent: name of the agent.
      launches: kinds of launch, and the Python of each; ratios are the first's to the second's.
      rows: of `asked`.
      rounds: of each.

    Returns:
      Of each row its settings, `medians` by launch, and with two launches `ratio`, the median of
      the rounds' `ratios`.

    Raises:
      ValueError: if a Python cannot measure.
    """
    outcome = []
    for what, settings in rows:
        found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in launches}
        for _ in range(rounds):
            for kind, python in launches.items():
                found[kind].append(_elsewhere(python, what, kind, agent, settings))
        row: dict[str, Any] = {"what": what, **settings}
        row["medians"] = {kind: _medians(each) for kind, each in found.items()}
        if len(found) == 2:
            ours, theirs = ([one[_MAIN[what]] for one in each] for each in found.values())
            row["ratios"] = [a / b for a, b in zip(ours, theirs, strict=True)]
            row["ratio"] = statistics.median(row["ratios"])
        outcome.append(row)
        print(_line(row), file=sys.stderr, flush=True)
    return outcome


def _elsewhere(
    python: str, what: str, kind: str, agent: str, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """`figures`, in a new process of a Python that may be another."""
    package = str(pathlib.Path(__file__).absolute().parents[3])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [python, "-m", __name__, json.dumps([what, kind, agent, dict(settings)])]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            check=True,
        )
        return json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.CalledProcessError as error:
        last = (error.stderr or error.stdout).strip().splitlines()[-1:] or ["it said nothing"]
        raise ValueError(f"{what} of {kind} under {python}: {last[0]}") from error
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"{what} of {kind} under {python}: {error}") from error


def _medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def _line(row: Mapping[str, Any]) -> str:
    """A row for people."""
    settings = {k: v for k, v in row.items() if k not in ("what", "medians", "ratio", "ratios")}
    words = [row["what"], *(f"{name}={value:g}" for name, value in settings.items())]
    main = _MAIN[row["what"]]
    lines = []
    for kind, medians in row["medians"].items():
        rest = ", ".join(
            f"{name.replace('_', ' ')} {value:,.4g}" for name, value in medians.items()
        )
        lines.append(f"  {kind:10} {rest}")
    if "ratio" in row:
        first, second = row["medians"]
        better = " (less is better)" if main in _LESS_IS_BETTER else ""
        lines.append(
            f"  {first} / {second}: {main.replace('_', ' ')} {row['ratio']:.2f}{better}, of rounds "
            f"{', '.join(f'{one:.2f}' for one in row['ratios'])}"
        )
    return "\n".join([" ".join(words), *lines])


def _against(text: str) -> tuple[str, str]:
    kind, _, python = text.partition("=")
    if kind not in ("processes", "ray") or not python:
        raise ValueError(f"--against takes processes=PYTHON or ray=PYTHON, not {text!r}.")
    return kind, python


def main(argv: Sequence[str] | None = None) -> int:
    """Prints all figures."""
    parser = argparse.ArgumentParser(prog="python -m troupe.baselines.speed", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("agent")
    parser.add_argument("--launch", choices=("processes", "ray"), default="processes")
    parser.add_argument("--against", metavar="KIND=PYTHON", help="another launch, and its Python")
    parser.add_argument("--only", choices=WHAT, nargs="+", default=WHAT, help="default: all")
    parser.add_argument("--actors", type=int, nargs="+", default=(1, 8), metavar="N")
    parser.add_argument("--step-ms", type=float, nargs="+", default=(1.0, 5.0, 20.0), metavar="MS")
    parser.add_argument("--seconds", type=float, default=8.0, help="that actors are watched")
    parser.add_argument("--rounds", type=int, default=3, help="of each figure (default 3)")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    args = parser.parse_args(argv)
    try:
        launches = {args.launch: sys.executable}
        if args.against:
            kind, python = _against(args.against)
            if kind == args.launch:
                raise ValueError(f"--against {kind} is the launch itself; name the other one.")
            launches[kind] = python
        rows = asked(args.only, args.step_ms, args.actors, args.seconds)
        outcome = compare(args.agent, launches, rows, args.rounds)
    except ValueError as error:
        print(f"troupe: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(outcome, indent=2))
    return 0


if __name__ == "__main__":
    runtime.configure_cpu()
    print(json.dumps(figures(*json.loads(sys.argv[1]))))
