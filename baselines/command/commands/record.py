"""`troupe record DIR --steps N`"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ....launch.logging import report
from ...tuned import Tuned
from ..parser import Commands, count


def register(commands: Commands) -> None:
    parser = commands.add("record", "write down what a run's policy does, to learn from", record)
    parser.add_argument("run", metavar="DIR", help="directory of the run")
    parser.add_argument(
        "--steps", type=count, required=True, metavar="N", help="actions to write down"
    )
    parser.add_argument(
        "--out", metavar="FILE", help="of the recording; default: recording.npz in DIR"
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--epsilon",
        type=float,
        default=0.0,
        metavar="CHANCE",
        help="of any action in place of the policy's; default: 0",
    )
    choice.add_argument(
        "--stochastic",
        action="store_true",
        help="have the policy draw its actions as in training; default: as in evaluations",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the episodes")


def record(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    from ....launch.evaluation import record as recorder

    path, dataset = recorder.record(
        options.run,
        steps=options.steps,
        out=options.out,
        epsilon=options.epsilon,
        stochastic=options.stochastic,
        seed=options.seed,
        reporter=report.for_stderr(),
    )
    returns = dataset.returns
    print(
        f"{dataset.num_transitions:,} steps of {len(returns)} episodes, return "
        f"{returns.mean():.1f} +- {returns.std():.1f} (those cut short among them), in {path}"
    )
    return 0
