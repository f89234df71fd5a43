"""`troupe evaluate DIR`"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from ....launch.logging import report
from ...tuned import Tuned
from ..parser import Commands, count


def register(commands: Commands) -> None:
    parser = commands.add(
        "evaluate", "play the policy of a run's newest checkpoint, or its best", evaluate
    )
    parser.add_argument("run", metavar="DIR", help="directory of the run")
    parser.add_argument(
        "--best",
        action="store_true",
        help="the best policy by the run's evaluations; without --episodes, --seed and --video it "
        "plays the episodes of its evaluation again",
    )
    parser.add_argument("--episodes", type=count, metavar="N", help="default: 20")
    parser.add_argument("--seed", type=int, metavar="N", help="of the episodes; default: 0")
    parser.add_argument("--video", metavar="FILE", help="film the episodes (mp4 or gif)")
    parser.add_argument(
        "--env",
        metavar="ID",
        help="another environment, whose observations and actions are like the run's; "
        "--env.KEY VALUE sets an option of it, or of the run's own",
    )
    parser.add_argument(
        "--opponent",
        metavar="DIR",
        help="in games of two: a run whose newest policy it plays against, which draws its moves; "
        "DIR/best: its best policy",
    )
    parser.add_argument("--render", action="store_true", help="show the episodes in a window")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")


def evaluate(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    from ....launch.episodes import success_text
    from ....launch.evaluation import checkpoint
    from ....launch.specification import arguments

    outcome = checkpoint.evaluate(
        options.run,
        which="best" if options.best else "newest",
        episodes=options.episodes,
        seed=options.seed,
        save_video=options.video,
        render=options.render,
        env=options.env,
        env_options=arguments.parse(options.environment),
        opponent=options.opponent,
        reporter=report.for_stderr(),
    )
    summary = outcome.summary()
    if options.json:
        print(json.dumps(summary))
    else:
        at = f"{summary['actor_steps']:,} actor steps"
        if not summary["actor_steps"]:  # It learned from data.
            at = f"{summary['learner_steps']:,} gradient steps"
        print(
            f"return {summary['mean']:.1f} +- {summary['std']:.1f} (least {summary['min']:.1f}, "
            f"most {summary['max']:.1f}) over {summary['episodes']} episodes"
            f"{success_text(summary)}, after {at}"
        )
    return 0
