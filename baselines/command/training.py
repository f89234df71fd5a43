"""The flags of a training run, for `train` and for commands that train often."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence
from typing import Any

from ...launch.errors import RequestError
from ...launch.experiment import Checkpointing, Evaluation
from ...launch.specification.recipe import Recipe
from ..tuned import Tuned
from . import asking
from .parser import (
    add_data,
    add_devices,
    add_launch,
    add_partition,
    add_plan,
    add_sampler,
    add_task,
    count,
)


def add_flags(
    parser: argparse.ArgumentParser, arguments: Sequence[str], required: bool = True
) -> None:
    """All but where the run lies.

    Args:
      parser: of the command.
      arguments: those to be parsed. Where they ask for help on an agent, its config is listed.
      required: whether there must be an agent and an environment.
    """
    add_task(parser, required)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument(
        "--steps",
        type=count,
        metavar="N",
        help="actor steps, with --data gradient steps; default: as tuned, or 100000",
    )
    add_data(parser)
    _add_origin(parser)
    parser.add_argument(
        "--target",
        type=float,
        metavar="RETURN",
        help="fail (exit code 1) if the mean of the final evaluation is lower",
    )
    parser.add_argument(
        "--stop-at-target",
        action="store_true",
        help="end at the first evaluation that reaches the target; default of that: as tuned",
    )
    parser.add_argument(
        "--evaluate-every",
        type=count,
        metavar="N",
        help="steps between evaluations; default: as tuned, or a tenth of the steps",
    )
    parser.add_argument(
        "--evaluation-episodes", type=count, metavar="N", help="of evaluations on the way"
    )
    parser.add_argument(
        "--final-evaluation-episodes", type=count, metavar="N", help="of the last; default: 20"
    )
    parser.add_argument(
        "--checkpoint-every", type=float, metavar="SECONDS", help="default: 60 seconds"
    )
    parser.add_argument(
        "--checkpoints",
        metavar="ADDRESS",
        help="where copies of all that are kept go besides, such as s3://bucket/runs/mine",
    )
    parser.add_argument(
        "--checkpoint-replay",
        choices=("auto", "always", "never"),
        help="keep the replay in checkpoints; auto (default): where it takes at most 256 MiB",
    )
    parser.add_argument(
        "--wandb", metavar="PROJECT", help="log to Weights & Biases too (troupe[wandb])"
    )
    add_launch(parser)
    add_devices(parser)
    add_partition(parser)
    add_sampler(parser)
    add_plan(parser)
    _add_config(parser, arguments)


def _add_origin(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("weights of another run")
    group.add_argument(
        "--from",
        dest="origin",
        metavar="DIR",
        help="begin with what the learner of that run has learned: parameters, targets and the "
        "optimizer's state; the agent's config, the environment and the seed may be others",
    )
    group.add_argument(
        "--best",
        action="store_true",
        help="with --from: with the parameters of its best policy alone",
    )
    group.add_argument(
        "--from-only",
        action="append",
        metavar="PATTERN",
        help="with --from: with those arrays alone, as in 'params/*' (`troupe weights DIR` lists "
        "them); may be given several times",
    )


def _origin(options: argparse.Namespace) -> dict[str, Any] | None:
    """Returns where the weights of a run come from; None: it begins anew."""
    if options.origin is None:
        for name, value in (("--best", options.best), ("--from-only", options.from_only)):
            if value:
                raise RequestError(f"{name} says what to take of another run; name it with --from.")
        return None
    run = str(pathlib.Path(options.origin).resolve())  # To be found from elsewhere.
    return {"run": run, "best": options.best, "only": list(options.from_only or ())}


def _add_config(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    group = parser.add_argument_group(
        "config", f"fields of the agent's config; `{parser.prog} AGENT --help` lists them"
    )
    command = parser.prog.rpartition(" ")[2]
    agent = arguments[1] if len(arguments) > 1 and arguments[0] == command else ""
    if agent and not agent.startswith("-") and {"-h", "--help"} & set(arguments):
        from ...launch.specification import fields, origins

        group.description = f"of {agent}"
        for field in fields.fields(origins.find_builder(agent).config_class).values():
            group.add_argument(
                f"--config.{field.name}",
                metavar="VALUE",
                help=f"{field.doc} ({fields.describe(field.kind)}; "
                f"default: {fields.text(field.default)})".replace("%", "%%"),
            )
    else:
        group.add_argument("--config.FIELD", metavar="VALUE", help="set a field")


def recipe(options: argparse.Namespace, settings: Sequence[Tuned]) -> Recipe:
    """Builds the recipe of a run from the flags of `add_flags` and tuned settings."""
    tuned = asking.tuned_for(options, settings)
    stops = options.stop_at_target
    evaluation = asking.given(
        every=options.evaluate_every or tuned.evaluation_every,
        episodes=options.evaluation_episodes,
        final_episodes=options.final_evaluation_episodes,
        target_return=tuned.target if stops and options.target is None else options.target,
        stop_at_target=stops or None,
    )
    checkpointing = asking.given(
        every_seconds=options.checkpoint_every,
        replay=options.checkpoint_replay,
        copies=options.checkpoints,
    )
    return asking.recipe(
        options,
        tuned,
        seed=options.seed,
        evaluation=Evaluation(**evaluation),
        checkpointing=Checkpointing(**checkpointing),
        **asking.partition(options),
        **asking.sampler(options),
        actor_device=options.actor_device,
        learner_device=options.learner_device,
        wandb=options.wandb,
        origin=_origin(options),
        launch=options.launch,
        engine=options.engine,
        roles={
            **asking.roles(options),
            **asking.cluster(options),
            **asking.given(listen=options.listen),
        },
    )
