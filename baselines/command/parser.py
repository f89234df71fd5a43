"""The commands' parser, and the flags that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import NoReturn

from ...launch.errors import RequestError
from ...launch.experiment import ACTOR_DEVICES, DEVICES
from ...launch.roles import ENGINES, KINDS, NO_HOSTS
from ..tuned import Tuned

Command = Callable[[argparse.Namespace, Sequence[Tuned]], int]
"""Does what was asked for, from the tuned settings; returns the exit code."""


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        raise RequestError(message)


class _Hosts(argparse.Action):
    """Rejects a removed flag, and names its replacement."""

    def __call__(self, *arguments: object) -> NoReturn:
        raise RequestError(NO_HOSTS)


class Commands:
    """The commands of `troupe`, to which each adds itself.

    Attributes:
      arguments: those to be parsed.
      parser: of all commands.
    """

    def __init__(self, arguments: Sequence[str] = ()):
        self.arguments = tuple(arguments)
        self._shared = _Parser(add_help=False)
        self._shared.add_argument(
            "--debug", action="store_true", help="show where an error comes from"
        )
        self.parser = _Parser(
            prog="troupe",
            description="Distributed reinforcement learning in JAX.",
            parents=[self._shared],
        )
        self._parsers = self.parser.add_subparsers(
            required=True, metavar="COMMAND", parser_class=_Parser
        )

    def add(self, name: str, summary: str, command: Command) -> argparse.ArgumentParser:
        """A command without arguments yet; `command` is called with the options."""
        parser = self._parsers.add_parser(
            name, help=summary, description=summary, parents=[self._shared]
        )
        parser.set_defaults(command=command)
        return parser


def add_task(
    command: argparse.ArgumentParser, required: bool = True, needs_env: bool = True
) -> None:
    """AGENT, --env and --config-file. A command that has them takes --config.FIELD, --env.KEY."""
    command.add_argument(
        "agent",
        metavar="AGENT",
        nargs=None if required else "?",
        help="see `troupe list`; or module:Builder",
    )
    command.add_argument(
        "--env",
        required=required and needs_env,
        metavar="ID",
        help="id of the environment; --env.KEY VALUE sets an option of it: max_episode_steps, or "
        "an argument of its constructor",
    )
    command.add_argument(
        "--config-file",
        metavar="FILE",
        help="fields of the agent's config as JSON or TOML, or a run's config.json; "
        "--config.FIELD comes before it",
    )


def add_data(command: argparse.ArgumentParser) -> None:
    """Adds --data."""
    command.add_argument(
        "--data",
        metavar="SOURCE",
        help="learn from data and do not act, or with the wrappers that take data learn from it "
        "besides: the file of `troupe record`, the directory of a run "
        "whose checkpoint has its replay, or the name or the folder of a local Minari dataset",
    )


def add_launch(command: argparse.ArgumentParser) -> None:
    """Adds --launch and the flags that belong to it."""
    group = command.add_argument_group(
        "launch",
        "processes and ray need troupe[ray], any Python; under Python 3.10 troupe[distributed] has "
        "threads, and processes too",
    )
    group.add_argument("--launch", choices=KINDS, default=KINDS[0], help=f"default: {KINDS[0]}")
    group.add_argument(
        "--engine",
        choices=ENGINES,
        help="of processes: what keeps them; default: launchpad where it is installed, else ray",
    )
    add_roles(group)
    add_cluster(group)
    group.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="IPv4 address of this machine where the replay and the other servers listen, and "
        "where whoever can connect can run code; default: 127.0.0.1, this machine only",
    )


def add_cluster(group: argparse._ActionsContainer) -> None:
    """Adds the flags of a launch by Ray: the cluster's address, and the resources of roles."""
    group.add_argument(
        "--address",
        metavar="auto|HOST:PORT",
        help="of a Ray cluster that this machine is a node of; default: one is started here",
    )
    group.add_argument(
        "--actor-cpus",
        type=float,
        metavar="X",
        help="of Ray: processors that each actor takes of its node; default: 1, or less where "
        "there is no room for that",
    )
    group.add_argument(
        "--learner-gpus",
        type=count,
        metavar="K",
        help="of Ray: GPUs that each process of the learner has of its node; default: as "
        "--learner-device says",
    )
    group.add_argument("--hosts", action=_Hosts, help=argparse.SUPPRESS)


def add_roles(group: argparse._ActionsContainer) -> None:
    """Adds the flags of roles: the number of each, and the placement of inference servers."""
    group.add_argument(
        "--actors", type=count, metavar="N", help="each with config.num_envs environments"
    )
    group.add_argument(
        "--inference-servers", type=int, metavar="N", help="default: 0, actors act by themselves"
    )
    group.add_argument(
        "--inference-mesh",
        metavar="AXES",
        help="devices over which each server and each evaluator compute the policy: model=4",
    )
    group.add_argument(
        "--inference-schedule",
        metavar="TACTICS",
        help="how they share it: megatron:model",
    )
    group.add_argument(
        "--learner-hosts",
        type=count,
        metavar="N",
        help="processes that share the learner's batch; default: 1; more need processes or ray",
    )


def add_devices(command: argparse.ArgumentParser, default: str | None = DEVICES[0]) -> None:
    """Adds --actor-device and --learner-device."""
    for who, what, names in (
        ("actor", "actors and evaluators", ACTOR_DEVICES),
        ("learner", "the learner", DEVICES),
    ):
        command.add_argument(
            f"--{who}-device",
            choices=names,
            default=default,
            help=f"what {what} compute on; default: auto, what is quickest",
        )


def add_partition(command: argparse.ArgumentParser) -> None:
    """--mesh, --schedule, --recompute, --memory, --placement and --device."""
    command.add_argument(
        "--mesh",
        metavar="AXES",
        help="devices that share the learner's step (a compiled run's environments and replay too, "
        "or several runs): data=4,model=2",
    )
    command.add_argument(
        "--schedule",
        metavar="TACTICS",
        help="how they share it: batch:data,zero3:data; default: the batch over a mesh's only axis",
    )
    command.add_argument(
        "--recompute",
        choices=("auto",),
        help="compute activations again where memory does not suffice",
    )
    command.add_argument(
        "--memory",
        type=float,
        metavar="SHARE",
        help="of a device's memory, that the step may need; default: 0.9",
    )
    command.add_argument(
        "--placement",
        choices=("auto",),
        help="lay axes and sums onto the hierarchy of links as is quickest",
    )
    command.add_argument(
        "--device",
        metavar="NAME|FILE",
        help="plan for a device of `troupe list`, or a calibration's file; default: those at hand",
    )


def add_sampler(command: argparse.ArgumentParser) -> None:
    """Adds --sampler-mesh and --sampler-schedule."""
    command.add_argument(
        "--sampler-mesh",
        metavar="AXES",
        help="in one process, devices of the policy's own, besides the learner's where there are "
        "enough: model=1",
    )
    command.add_argument(
        "--sampler-schedule",
        metavar="TACTICS",
        help="how they share it: megatron:model; a mesh of one device needs none",
    )


def add_plan(command: argparse.ArgumentParser) -> None:
    """Adds --plan, for commands that run a plan made before."""
    command.add_argument(
        "--plan",
        metavar="FILE",
        help="spread the learner's step as `troupe plan --save-plan FILE` has written, in place of "
        "--mesh and the flags after it",
    )


def take_overrides(arguments: list[str], prefix: str = "--config.") -> dict[str, str]:
    """Takes `--config.FIELD VALUE` and `--config.FIELD=VALUE`, say, out of the arguments.

    The names are known only once the agent or the environment is, so they are not the parser's.
    """
    overrides: dict[str, str] = {}
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if not word.startswith(prefix):
            rest.append(word)
            continue
        name, equals, value = word.removeprefix(prefix).partition("=")
        if not equals:
            value = next(words, "--")
            if value.startswith("--"):
                raise RequestError(f"{prefix}{name} needs a value.")
        if name in overrides:
            raise RequestError(f"{prefix}{name} was given twice.")
        overrides[name] = value
    arguments[:] = rest
    return overrides


def count(text: str) -> int:
    """An integer of at least 1; 1e5 is one too."""
    try:
        number = float(text)
    except ValueError:
        number = 0.5
    if number < 1 or not number.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return int(number)
