"""The command that does a run again."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...launch import transfer
from ...launch.errors import RequestError
from ...launch.specification import fields, origins
from ...launch.specification.recipe import Recipe
from ..command import training
from ..command.parser import Commands, take_overrides
from ..settings import find
from ..tuned import Tuned


def command(config: Mapping[str, Any], seeds: Sequence[int]) -> str | None:
    """Returns the shell command that starts runs with these seeds.

    Args:
      config: content of the `config.json` of one of them.
      seeds: of all.

    Returns:
      The command, checked: the present command line makes the run's recipe of it. None if there
      is no such command, for example for a run that was begun in Python.
    """
    try:
        recipe = Recipe.from_json(config)
        said = words(recipe)
    except (RequestError, ValueError):
        return None
    if said is None:
        return None
    line = f"troupe train {shlex.join(said)}"
    if len(seeds) == 1:
        return f"{line} --seed {seeds[0]}"
    return f"for seed in {' '.join(map(str, seeds))}; do {line} --seed $seed; done"


def words(recipe: Recipe, *, whole: bool = False) -> list[str] | None:
    """Returns the arguments of `troupe train` that a recipe is asked for with, but for its seed.

    Args:
      recipe: of the run.
      whole: True: tuned settings of the agent on the environment are said too.

    Returns:
      The arguments, checked: the present command line makes the recipe of them. None if there are
      no such arguments.

    Raises:
      ValueError: if the recipe cannot be.
    """
    tuned = find(recipe.agent, recipe.env) or Tuned(recipe.agent, recipe.env)
    said = list(_words(recipe, tuned, whole))
    made = _parsed([*said, "--seed", str(recipe.seed)], tuned)
    return said if _asked(made) == _asked(recipe) else None


def _words(recipe: Recipe, tuned: Tuned, whole: bool) -> Iterator[str]:
    yield recipe.agent
    yield from ("--env", recipe.env)
    for name, value in recipe.environment.items():
        if whole or tuned.environment.get(name) != value:
            yield from (f"--env.{name}", fields.text(value))
    if whole or recipe.steps != tuned.steps:
        yield from ("--steps", str(recipe.steps))
    evaluation, checkpointing = recipe.evaluation, recipe.checkpointing
    every = None if whole else tuned.evaluation_every
    flags = {
        "data": recipe.data,
        "evaluate-every": None if evaluation.every == every else evaluation.every,
        "evaluation-episodes": _unless(evaluation, "episodes"),
        "final-evaluation-episodes": _unless(evaluation, "final_episodes"),
        "target": evaluation.target_return,
        "checkpoint-every": _unless(checkpointing, "every_seconds"),
        "checkpoint-replay": _unless(checkpointing, "replay"),
        "checkpoints": checkpointing.copies,
        "wandb": recipe.wandb,
        "mesh": recipe.mesh,
        "schedule": recipe.schedule,
        "launch": _unless(recipe, "launch"),
        "engine": recipe.engine if recipe.launch == "processes" else None,
        **{name.replace("_", "-"): value for name, value in recipe.roles.items()},
    }
    for name, value in flags.items():
        if value is not None:
            yield from (f"--{name}", str(value))
    if recipe.origin is not None:
        origin = transfer.Origin(**recipe.origin)
        yield from ("--from", origin.run)
        yield from ["--best"] if origin.best else []
        for pattern in origin.only:
            yield from ("--from-only", pattern)
    if evaluation.stop_at_target:
        yield "--stop-at-target"
    config_class = origins.find_builder(recipe.agent, recipe.folders).config_class
    base, config = (fields.make(config_class, one) for one in (tuned.config, recipe.config))
    for name in fields.fields(config_class):
        if getattr(base, name) != getattr(config, name) or (whole and name in tuned.config):
            yield from (f"--config.{name}", fields.text(getattr(config, name)))


def _unless(values: Any, name: str) -> Any:
    """A field of a dataclass; None where it is as by default."""
    defaults = {field.name: field.default for field in dataclasses.fields(values)}
    return None if getattr(values, name) == defaults[name] else getattr(values, name)


def _parsed(words: list[str], tuned: Tuned) -> Recipe:
    """Parses arguments of `troupe train` into a recipe, as the command line does."""
    rest = ["train", *words]
    overrides, environment = take_overrides(rest), take_overrides(rest, "--env.")
    commands = Commands(rest)
    parser = commands.add("train", "", lambda options, settings: 0)
    training.add_flags(parser, rest)
    options = commands.parser.parse_args(rest)
    options.overrides, options.environment = overrides, environment
    return training.recipe(options, [tuned])


def _asked(recipe: Recipe) -> dict[str, Any]:
    """A recipe as JSON has it; where its modules lie is this machine's affair."""
    asked = json.loads(json.dumps(recipe.to_json()))
    for name in ("environment", "training_environment"):
        asked[name] = {key: fields.text(value) for key, value in asked[name].items()}
    del asked["folders"]
    return asked
