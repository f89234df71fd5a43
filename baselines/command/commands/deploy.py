"""`troupe deploy slurm|kubernetes AGENT --env ID --out DIR --print`"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from ....launch.errors import RequestError
from ...tuned import Tuned
from .. import asking, training
from ..parser import Commands, count

_WHERE = ("slurm", "kubernetes")


def register(commands: Commands) -> None:
    parser = commands.add("deploy", "write the job of a run on a cluster", deploy)
    parser.add_argument("where", choices=_WHERE, help="whose job")
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="of the run: a path that all nodes see"
    )
    group = parser.add_argument_group("job")
    group.add_argument("--print", action="store_true", help="to standard output; needed for now")
    group.add_argument("--nodes", type=count, metavar="N", help="default: 2")
    group.add_argument(
        "--cpus", type=count, metavar="N", help="of each node; default: what its roles take"
    )
    group.add_argument("--minutes", type=count, metavar="N", help="at most; default: 1440")
    group.add_argument("--image", metavar="NAME", help="of Kubernetes: what pods run")
    group.add_argument("--claim", metavar="NAME", help="of Kubernetes: volume claim of --out")
    training.add_flags(parser, commands.arguments)
    parser.set_defaults(launch="ray")


def deploy(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    if not options.print:
        raise RequestError("nothing is submitted from here: give --print, and its output to yours.")
    if options.launch != "ray":
        raise RequestError(
            f"--launch {options.launch} is on one machine; the nodes of a job are a Ray cluster, "
            "so leave --launch out."
        )
    if options.address is not None:
        raise RequestError("a job knows its nodes by itself; leave out --address.")
    recipe = training.recipe(options, settings)
    from ....launch.jobs import kubernetes, slurm
    from ....launch.jobs.job import Job
    from ....launch.roles import Roles
    from ...report import again

    train = again.command(recipe.to_json(), [recipe.seed])
    if train is None:
        raise RequestError("there is no command line that begins this run elsewhere.")
    names = ("nodes", "cpus", "minutes", "image", "claim")
    given = asking.given(**{name: getattr(options, name) for name in names})
    roles = Roles.of(recipe.roles)
    job = Job(train, options.out, roles, recipe.learner_device, **given)
    if options.where == "slurm":
        print(slurm.script(job), end="")
    else:
        print(json.dumps(kubernetes.manifests(job), indent=1))
    return 0
