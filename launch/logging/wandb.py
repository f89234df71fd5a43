"""Weights & Biases, as a callback: `troupe train ... --wandb PROJECT`."""

from __future__ import annotations

import pathlib
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import extras
from ..callbacks import Callback

if TYPE_CHECKING:
    from ..files.result import Result

Row = Mapping[str, Any]


def require() -> Any:
    """The library.

    Raises:
      RequestError: if it is not installed.
    """
    return extras.require("wandb", "wandb", "logging to Weights & Biases")


class WandbLogger(Callback):
    """Sends a run's settings and rows to Weights & Biases, over its actor steps,
    or its gradient steps where it learns from data.

    A run that is resumed goes on with the same curves. With WANDB_MODE=offline in the environment
    nothing is sent: what `wandb sync` sends later lies in the run's directory.
    """

    def __init__(self, project: str, **options: Any):
        """Nothing is sent yet.

        Args:
          project: where the run belongs.
          **options: further arguments of `wandb.init`: `entity`, `group`, `tags`, ...

        Raises:
          RequestError: if the library is not installed.
        """
        require()
        self._project, self._options = project, options
        self._run: Any = None
        self._clock = "actor_steps"

    def on_begin(self, directory: pathlib.Path, config: Mapping[str, Any]) -> None:
        wandb = require()
        number = directory / "wandb" / "id"
        number.parent.mkdir(exist_ok=True)
        if not number.exists():
            number.write_text(uuid.uuid4().hex[:12])
        self._run = wandb.init(
            **{
                "project": self._project,
                "dir": str(directory),
                "name": directory.name,
                "config": dict(config),
                "id": number.read_text(),
                "resume": "allow",
                # What is printed is the run's own; its live line must stay on the terminal.
                "settings": wandb.Settings(console="off"),
                **self._options,
            }
        )
        # Rows come in no strict order: an evaluation may end after training has gone on.
        self._clock = "actor_steps" if config.get("data") is None else "learner_steps"
        self._run.define_metric("*", step_metric=self._clock)

    def on_metrics(self, row: Row) -> None:
        self._log(row)

    def on_evaluation(self, row: Row) -> None:
        self._log(row)

    def on_end(self, result: Result | None) -> None:
        if self._run is not None:
            if result is not None:
                self._run.summary.update({"actor_steps_per_second": result.actor_steps_per_second})
            self._run.finish(exit_code=0 if result is not None else 1)
            self._run = None

    def _log(self, row: Row) -> None:
        if self._run is None:
            return
        kind, steps = row["kind"], row[self._clock]
        named = {
            f"{kind}/{name}": value
            for name, value in row.items()
            if name not in ("kind", self._clock) and value is not None
        }
        self._run.log({self._clock: steps, **named})
