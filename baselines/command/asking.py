"""From options to a recipe."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from ...launch.errors import RequestError
from ...launch.files.directory import RunDirectory
from ...launch.specification import arguments, stored
from ...launch.specification.recipe import Recipe
from ..tuned import Tuned, find

#: What a --preset is planned for where no --env is given.
_PUBLISHED = Tuned(
    "grpo",
    "tokens:reverse",
    config={
        "dtype": "bfloat16",
        "rematerialize": True,
        "kl_cost": 0.01,
        "num_envs": 64,
        "batch_size": 64,
    },
    environment={"answers": 32, "prompt_length": 128, "answer_length": 932},
    source="64 prompts, 32 answers to each, 1,060 tokens in the mean and a reference, as the "
    "performance summary of NeMo-RL 0.4 measures Llama 3.1 8B (docs.nvidia.com/nemo/rl)",
)


def tuned_for(options: argparse.Namespace, settings: Sequence[Tuned]) -> Tuned:
    """Returns the settings tuned for an agent and an environment, or else the defaults.

    Of a --preset without an --env they are those of published figures; it becomes an override.
    """
    preset = getattr(options, "preset", None)
    if preset is not None:
        if "preset" in options.overrides:
            raise RequestError("--preset and --config.preset were given, which are the same.")
        options.overrides = {"preset": preset, **options.overrides}
        if options.env is None:
            options.env = _PUBLISHED.env
            config = {"preset": preset, **_PUBLISHED.config}
            return dataclasses.replace(_PUBLISHED, agent=options.agent, config=config)
    if options.env is None:
        raise RequestError("--env ID is needed, or the --preset of a language model.")
    asked = options.agent, options.env
    return find(settings, *asked) or Tuned(*asked)


def recipe(options: argparse.Namespace, tuned: Tuned, **more: Any) -> Recipe:
    """Builds the recipe of a run from options and tuned settings; options have the last word."""
    environment = arguments.parse(options.environment)
    if isinstance(run := environment.get("opponent"), str) and (
        os.sep in run or RunDirectory(run).config.exists()
    ):
        environment["opponent"] = os.path.abspath(run)  # Actors may be started elsewhere.
    return Recipe(
        options.agent,
        options.env,
        config={**tuned.config, **options.overrides},
        steps=getattr(options, "steps", None) or tuned.steps,
        environment={**tuned.environment, **environment},
        training_environment={
            name: value
            for name, value in tuned.training_environment.items()
            if name not in environment
        },
        data=_data(getattr(options, "data", None)),
        **more,
    )


def _data(source: str | None) -> str | None:
    """A source, so that `troupe resume` finds it from elsewhere."""
    if source is None:
        return None
    from ...launch.data import sources

    return sources.resolve(source)


def roles(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the options about roles that were given (`parser.add_roles`)."""
    return given(
        actors=options.actors,
        inference_servers=options.inference_servers,
        inference_mesh=options.inference_mesh,
        inference_schedule=options.inference_schedule,
        learner_hosts=options.learner_hosts,
    )


def partition(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the options about a mesh (`parser.add_partition`)."""
    words = {name: getattr(options, name, None) for name in stored.PLACEMENT}
    if words["plan"] is not None:
        words["plan"] = str(pathlib.Path(words["plan"]).resolve())  # To be found from elsewhere.
    return words


def sampler(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the options about a policy's own mesh that were given (`parser.add_sampler`)."""
    return given(**{name: getattr(options, name) for name in stored.SAMPLER})


def cluster(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the options about the cluster that were given (`parser.add_cluster`)."""
    return given(
        address=options.address,
        actor_cpus=options.actor_cpus,
        learner_gpus=options.learner_gpus,
    )


def given(**values: Any) -> dict[str, Any]:
    """Those that were given; the others keep the defaults of where they go."""
    return {name: value for name, value in values.items() if value is not None}


def free_directory(recipe: Recipe, prefix: str = "") -> pathlib.Path:
    """The first of runs/AGENT-ENV-SEED, runs/AGENT-ENV-SEED-2 and so on that is not there."""
    words = (recipe.agent.rpartition(":")[2], recipe.env, str(recipe.seed))
    name = prefix + "-".join(re.sub(r"[^\w.-]+", "_", word) for word in words)
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for one in names if not (path := pathlib.Path("runs", one)).exists())
