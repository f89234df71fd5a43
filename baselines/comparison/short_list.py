"""The short list: cheap compiled runs that a change is checked with, against the ledger."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ...launch.experiment import Evaluation
from ...launch.logging.report import Reporter
from ...launch.specification.recipe import Recipe
from ..returns import ledger
from ..settings.ppo import PPO_CARTPOLE_ZOO
from . import outcome, runs
from .conduct import conduct
from .margin import make_rule
from .request import ComparisonRequest

SEEDS = 30
"""Of each task, as one program, looked at once."""
_MARGIN = "20%"
"""Twice that of other comparisons: a tenth of the range would take these tasks sixty seeds."""
_LAUNCH = "compiled"


@dataclasses.dataclass(frozen=True)
class ShortTask:
    """An agent on an environment, with settings that learn in seconds."""

    agent: str
    env: str
    steps: int
    target: float
    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.agent}-{self.env.removeprefix('jax:')}"

    def recipe(self) -> Recipe:
        """Returns the recipe of its first seed."""
        evaluation = Evaluation(every=self.steps // 4, episodes=5, final_episodes=10)
        recipe = Recipe(self.agent, self.env, self.config, steps=self.steps, evaluation=evaluation)
        return dataclasses.replace(recipe, launch=_LAUNCH)

    def request(self, reference: ledger.LedgerRow) -> ComparisonRequest:
        """Returns the request of a comparison with a row of the ledger."""
        recipe = self.recipe()
        rule, random = make_rule(recipe, _MARGIN, self.target, SEEDS)
        return ComparisonRequest(
            recipe,
            (_LAUNCH,),
            rule,
            SEEDS,
            random=random,
            target=self.target,
            reference=reference,
        )


TASKS = (
    ShortTask("ppo", "jax:CartPole-v1", 30_000, 475.0, PPO_CARTPOLE_ZOO),
    ShortTask(
        "dqn",
        "jax:Catch-v0",
        6_000,
        1.0,
        {
            "hidden_sizes": (32,),
            "batch_size": 16,
            "min_replay_size": 200,
            "epsilon_decay_steps": 2_000,
            "samples_per_insert": 8.0,
        },
    ),
    ShortTask(
        "sac",
        "jax:Pendulum-v1",
        6_000,
        -200.0,
        {
            "hidden_sizes": (64, 64),
            "learning_rate": 1e-3,
            "batch_size": 64,
            "min_replay_size": 500,
            "random_steps": 500,
            "samples_per_insert": 64.0,
        },
    ),
)
"""About three minutes of one processor."""


def compare(tasks: Sequence[ShortTask], out: pathlib.Path, reporter: Reporter) -> dict[str, str]:
    """Compares fresh runs of each task with the newest row of the ledger.

    Args:
      tasks: the short list.
      out: of the comparisons, a directory each.
      reporter: where words go.

    Returns:
      The answer on each task, in words, by its name.

    Raises:
      RequestError: if the ledger has no row of a task's settings; said before the first run.
    """
    requests = {one.name: one.request(ledger.newest(one.recipe())) for one in tasks}
    found = {}
    for name, request in requests.items():
        request.write(out / name)
        (verdict,) = conduct(request, out / name, reporter).values()
        found[name] = outcome.words(verdict)
    return found


def record(
    tasks: Sequence[ShortTask], out: pathlib.Path, reporter: Reporter
) -> dict[str, pathlib.Path]:
    """Runs each task and adds its row to the ledger.

    Args: as of `compare`.

    Returns:
      The file of each row, by the task's name.
    """
    commit, found = ledger.commit(), {}
    for one in tasks:
        recipe = one.recipe()
        figures = runs.run(recipe, SEEDS, out / one.name, reporter)
        row = ledger.LedgerRow.of(recipe, dict(enumerate(figures, recipe.seed)), commit)
        found[one.name] = ledger.append(row, recipe)
    return found
