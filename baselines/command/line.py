"""The command line: what can be asked for, and how an answer or a failure is told.

Nothing that takes long is imported before the arguments are read.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ...launch.distributed.deployment import KINDS
from ...launch.errors import Interrupted, RequestError, RunError
from ..tuned import Tuned

Command = Callable[[argparse.Namespace, Sequence[Tuned]], int]


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        raise RequestError(message)


def main(argv: Sequence[str] | None = None, settings: Sequence[Tuned] = ()) -> int:
    """Runs a command.

    Args:
      argv: arguments; None: those of the process.
      settings: tuned settings, which `train` starts from and `list` lists.

    Returns:
      The exit code: 0, 1 if a run failed, 2 if what was asked for cannot be, 128 and the number
      of the signal that ended it (130 for Ctrl-C).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        overrides = _take_overrides(arguments)
        parser = make_parser(arguments)
        options = parser.parse_args(arguments)
        options.overrides = overrides
        if overrides and not hasattr(options, "agent"):
            name = next(iter(overrides))
            raise RequestError(f"--config.{name} belongs to a new run: `troupe train AGENT`.")
        return _command(options.command)(options, settings)
    except Interrupted as stop:
        return _say(str(stop), 128 + stop.signal_number, debug)
    except KeyboardInterrupt:
        return _say("interrupted.", 128 + signal.SIGINT, debug)
    except RunError as error:
        return _say(str(error), 1, debug)
    except (RequestError, ValueError) as error:
        return _say(str(error), 2, debug)
    except BrokenPipeError:  # Whoever read the output has left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        hint = "" if debug else " (--debug shows where)"
        return _say(f"{type(error).__name__}: {error}{hint}", 1, debug)


def _say(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"troupe: {' '.join(message.split())}", file=sys.stderr)
    return code


def _command(name: str) -> Command:
    from . import commands

    return getattr(commands, name)


def make_parser(arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of all commands.

    Args:
      arguments: those to be parsed. Where they ask for help on an agent, its config is listed.
    """
    shared = _Parser(add_help=False)
    shared.add_argument("--debug", action="store_true", help="show where an error comes from")
    parser = _Parser(
        prog="troupe", description="Distributed reinforcement learning in JAX.", parents=[shared]
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Parser
    )

    def add(name: str, summary: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=summary, description=summary, parents=[shared])

    _add_train(add("train", "train an agent on an environment"), arguments)

    resume = add("resume", "go on with a run from its newest checkpoint")
    resume.add_argument("run", metavar="DIR", help="directory of the run")
    resume.add_argument("--steps", type=_count, metavar="N", help="a new budget of actor steps")
    resume.add_argument("--actors", type=_count, metavar="N", help="more or fewer than before")
    resume.add_argument("--listen", metavar="ADDRESS", help="another than before (see train)")
    _add_partition(resume)

    evaluate = add("evaluate", "play the policy of a run's newest checkpoint")
    evaluate.add_argument("run", metavar="DIR", help="directory of the run")
    evaluate.add_argument("--episodes", type=_count, default=20, metavar="N", help="default: 20")
    evaluate.add_argument("--seed", type=int, default=0, metavar="N", help="of the episodes")
    evaluate.add_argument("--video", metavar="FILE", help="film the episodes (mp4 or gif)")
    evaluate.add_argument("--json", action="store_true", help="print the numbers as JSON")

    plot = add("plot", "draw the learning curves of one run or several")
    plot.add_argument("runs", metavar="DIR", nargs="+", help="directories of runs")
    plot.add_argument("--save", metavar="FILE", help="default: curve.png, in DIR where it is one")

    plan = add("plan", "say what a mesh and a schedule make of an agent's step, and what it costs")
    _add_task(plan)
    _add_partition(plan, required=True)
    plan.add_argument(
        "--device", default="h200", help="a device of `troupe list`, or a calibration's file"
    )
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")

    compare = add("compare", "train at several scales and say whether the returns are equal")
    _add_task(compare)
    compare.add_argument(
        "--scales",
        required=True,
        nargs="+",
        metavar="SPEC",
        help="KIND[:ACTORS][@MESH@SCHEDULE], as processes:4 or one-process@data=2@batch:data; "
        "all are compared with the first",
    )
    compare.add_argument(
        "--seeds", type=_count, default=5, metavar="N", help="runs at each scale; default: 5"
    )
    compare.add_argument(
        "--steps", type=_count, metavar="N", help="actor steps; default: as tuned, or 100000"
    )
    compare.add_argument(
        "--out", required=True, metavar="DIR", help="of all runs; those that are there go on"
    )
    compare.add_argument("--json", action="store_true", help="print the comparison as JSON")

    graph = add("graph", "draw the roles of a distributed run and who calls whom")
    _add_task(graph)
    graph.add_argument("--save", default="program.png", metavar="FILE", help="default: program.png")
    _add_roles(graph)

    add("list", "list agents, environments with tuned settings, tactics and devices")
    return parser


def _add_train(train: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    _add_task(train)
    train.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    train.add_argument(
        "--steps", type=_count, metavar="N", help="actor steps; default: as tuned, or 100000"
    )
    train.add_argument("--out", metavar="DIR", help="directory of the run; default: one in runs/")
    train.add_argument(
        "--target",
        type=float,
        metavar="RETURN",
        help="fail (exit code 1) if the mean of the final evaluation is lower",
    )
    train.add_argument(
        "--evaluate-every",
        type=_count,
        metavar="N",
        help="actor steps between evaluations; default: as tuned, or a tenth of the steps",
    )
    train.add_argument(
        "--evaluation-episodes", type=_count, metavar="N", help="of evaluations on the way"
    )
    train.add_argument(
        "--checkpoint-every", type=float, metavar="SECONDS", help="default: 60 seconds"
    )
    train.add_argument(
        "--checkpoint-replay",
        choices=("auto", "always", "never"),
        help="keep the replay in checkpoints; auto (default): where it takes at most 256 MiB",
    )
    _add_launch(train)
    _add_partition(train)
    group = train.add_argument_group(
        "config", "fields of the agent's config; `troupe train AGENT --help` lists them"
    )
    agent = arguments[1] if len(arguments) > 1 and arguments[0] == "train" else ""
    if agent and not agent.startswith("-") and {"-h", "--help"} & set(arguments):
        from ...agents import find_builder
        from ...launch.request import fields

        group.description = f"of {agent}"
        for field in fields.fields(find_builder(agent).config_class).values():
            group.add_argument(
                f"--config.{field.name}",
                metavar="VALUE",
                help=f"{field.doc} ({fields.describe(field.kind)}; "
                f"default: {fields.text(field.default)})".replace("%", "%%"),
            )
    else:
        group.add_argument("--config.FIELD", metavar="VALUE", help="set a field")


def _add_task(command: argparse.ArgumentParser) -> None:
    command.add_argument("agent", metavar="AGENT", help="see `troupe list`; or module:Builder")
    command.add_argument("--env", required=True, metavar="ID", help="id of the environment")


def _add_launch(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("launch", "threads and processes need troupe[distributed]")
    group.add_argument("--launch", choices=KINDS, default=KINDS[0], help=f"default: {KINDS[0]}")
    _add_roles(group)
    group.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="IPv4 address of this machine where the replay and the other servers listen, and "
        "where whoever can connect can run code; default: 127.0.0.1, this machine only",
    )


def _add_roles(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--actors", type=_count, metavar="N", help="each with config.num_envs environments"
    )
    group.add_argument(
        "--inference-servers", type=int, metavar="N", help="default: 0, actors act by themselves"
    )
    group.add_argument(
        "--learner-hosts",
        type=_count,
        metavar="N",
        help="processes that share the learner's batch; default: 1; more need --launch processes",
    )
    group.add_argument(
        "--learner-device", choices=("cpu", "gpu"), help="all else keeps to the CPU; default: cpu"
    )


def _add_partition(command: argparse.ArgumentParser, required: bool = False) -> None:
    command.add_argument(
        "--mesh",
        metavar="AXES",
        required=required,
        help="devices that share the learner's step: data=4,model=2",
    )
    command.add_argument(
        "--schedule",
        metavar="TACTICS",
        required=required,
        help="how they share it: batch:data,zero3:data",
    )


def _take_overrides(arguments: list[str]) -> dict[str, Any]:
    """Takes `--config.FIELD VALUE` and `--config.FIELD=VALUE` out of the arguments.

    The names of the fields are known only once the agent is, so they are not the parser's.
    """
    overrides: dict[str, str] = {}
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if not word.startswith("--config."):
            rest.append(word)
            continue
        name, equals, value = word.removeprefix("--config.").partition("=")
        if not equals:
            value = next(words, "--")
            if value.startswith("--"):
                raise RequestError(f"--config.{name} needs a value.")
        if name in overrides:
            raise RequestError(f"--config.{name} was given twice.")
        overrides[name] = value
    arguments[:] = rest
    return overrides


def _count(text: str) -> int:
    """An integer of at least 1; 1e5 is one too."""
    try:
        number = float(text)
    except ValueError:
        number = 0.5
    if number < 1 or not number.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return int(number)
