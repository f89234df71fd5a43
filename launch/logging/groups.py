"""Groups runs that are seeds of the same, and names the differences between the groups."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..clock import ACTOR_STEPS, LEARNER_STEPS, StepCount
from ..files.directory import RunDirectory

_DEFAULTS = {
    "data": None,
    "launch": "one-process",
    "mesh": None,
    "schedule": None,
    "roles.actors": 1,
    "roles.inference_servers": 0,
    "roles.learner_hosts": 1,
    "roles.learner_device": "cpu",
}
"""What a run was that does not say it."""
_NOT_LEARNING = ("seed", "checkpointing", "evaluation.target_return", "roles.listen", "engine")
"""What changes nothing in what is learned or how that is judged."""
_NAMES = {
    "steps": "steps",
    "roles.actors": "actors",
    "roles.inference_servers": "inference servers",
    "roles.learner_hosts": "learner hosts",
}
"""What can be counted: "4 actors"."""
_MISSING = object()


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed."""

    agent: str
    env: str
    runs: tuple[RunDirectory, ...]
    differences: tuple[str, ...]
    """In words, what sets it apart from other groups of this agent and environment."""
    clock: StepCount
    """The clock that its runs went by: nobody acts where an agent learns from data."""
    targets: tuple[float, ...]
    """Returns that its runs were to reach."""


def group(runs: Sequence[str | os.PathLike[str]]) -> list[Group]:
    """Puts runs together that differ in nothing but their seed; each directory counts once.

    Raises:
      RequestError: if a directory is no run's.
    """
    directories = {os.path.realpath(run): RunDirectory(run) for run in runs}
    found: dict[str, list[tuple[RunDirectory, Mapping[str, Any]]]] = {}
    for directory in directories.values():
        config = directory.read_config()
        key = json.dumps(learning_settings(config), sort_keys=True)
        found.setdefault(key, []).append((directory, config))
    settings = {key: json.loads(key) for key in found}
    groups = []
    for key, members in found.items():
        mine = settings[key]
        others = [
            other
            for other in settings.values()
            if (other["agent"], other["env"]) == (mine["agent"], mine["env"])
        ]
        wanted = [_target(config) for _, config in members]
        targets = {target for target in wanted if target is not None}
        groups.append(
            Group(
                mine["agent"],
                mine["env"],
                tuple(directory for directory, _ in members),
                _differences(mine, others),
                ACTOR_STEPS if mine["data"] is None else LEARNER_STEPS,
                tuple(sorted(targets)),
            )
        )
    return groups


def learning_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """All that a run was asked for and that matters to what it learns, by dotted name."""
    flat = {**_DEFAULTS, **dict(_flatten(config))}
    return {
        name: value
        for name, value in flat.items()
        if not any(name == one or name.startswith(f"{one}.") for one in _NOT_LEARNING)
    }


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _differences(
    mine: Mapping[str, Any], all_of_them: Sequence[Mapping[str, Any]]
) -> tuple[str, ...]:
    """Names what differs in one from the others, in as few digits as tell them apart."""
    names = list(dict.fromkeys(name for one in all_of_them for name in one))
    values = {name: [one.get(name, _MISSING) for one in all_of_them] for name in names}
    differing = [name for name in names if any(one != values[name][0] for one in values[name])]
    words: list[tuple[str, ...]] = []
    for digits in (3, 6, 17):
        words = [
            tuple(_words(name, one.get(name, _MISSING), digits) for name in differing)
            for one in all_of_them
        ]
        if len(set(words)) == len(words):
            break
    return words[all_of_them.index(mine)]


def _words(name: str, value: Any, digits: int) -> str:
    """A setting as a legend calls it."""
    if name in _NAMES and isinstance(value, int):
        plural = _NAMES[name]
        return f"{value:,} {plural.removesuffix('s') if value == 1 else plural}"
    if name == "launch":
        return str(value)
    short = name.removeprefix("config.").removeprefix("roles.")
    if value is _MISSING:
        return f"no {short}"
    if isinstance(value, bool) or value is None:
        return f"{short} {str(value).lower()}"
    if isinstance(value, list):
        return f"{short} {','.join(map(str, value))}"
    return f"{short} {value:.{digits}g}" if isinstance(value, float) else f"{short} {value}"


def _target(config: Mapping[str, Any]) -> float | None:
    evaluation = config.get("evaluation")
    return evaluation.get("target_return") if isinstance(evaluation, Mapping) else None
