"""Running experiments: in one process, and as programs of many roles."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .callbacks import Callback
    from .distributed.engines.launchpad.launchpad_engine import launch
    from .distributed.engines.launchpad.program import make_program
    from .errors import Interrupted, RequestError, RunError, StopRun
    from .evaluation.checkpoint import evaluate
    from .evaluation.export import export
    from .evaluation.learner import LoadedLearner, load_learner
    from .evaluation.policy import Policy, load_policy
    from .experiment import Checkpointing, Evaluation, Experiment, Partition
    from .files.checkpoints import CheckpointError
    from .files.result import Result
    from .logging.wandb import WandbLogger
    from .roles import Roles
    from .running import resume, run

__all__ = [
    "Callback",
    "CheckpointError",
    "Checkpointing",
    "Evaluation",
    "Experiment",
    "Interrupted",
    "LoadedLearner",
    "Partition",
    "Policy",
    "RequestError",
    "Result",
    "Roles",
    "RunError",
    "StopRun",
    "WandbLogger",
    "evaluate",
    "export",
    "launch",
    "load_learner",
    "load_policy",
    "make_program",
    "resume",
    "run",
]

# Loaded on first use: the command line answers before jax is imported.
_HOMES = {
    "Callback": "callbacks",
    "CheckpointError": "files.checkpoints",
    "Checkpointing": "experiment",
    "Evaluation": "experiment",
    "Experiment": "experiment",
    "Interrupted": "errors",
    "LoadedLearner": "evaluation.learner",
    "Partition": "experiment",
    "Policy": "evaluation.policy",
    "RequestError": "errors",
    "Result": "files.result",
    "Roles": "roles",
    "RunError": "errors",
    "StopRun": "errors",
    "WandbLogger": "logging.wandb",
    "evaluate": "evaluation.checkpoint",
    "export": "evaluation.export",
    "launch": "distributed.engines.launchpad.launchpad_engine",
    "load_learner": "evaluation.learner",
    "load_policy": "evaluation.policy",
    "make_program": "distributed.engines.launchpad.program",
    "resume": "running",
    "run": "running",
}

_OTHER_NAMES = {
    "EvalCallback": "Evaluation, of every experiment",
    "CheckpointCallback": "Checkpointing, of every experiment",
    "ExperimentConfig": "Experiment",
    "StopTrainingOnRewardThreshold": "Evaluation(target_return=..., stop_at_target=True)",
    "evaluate_policy": "evaluate",
    "load": "load_policy",
    "make_distributed_experiment": "running.runner('processes', {'actors': 4})",
    "run_experiment": "run",
    "train": "run",
}
"""Counterparts of functions and classes of other libraries."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        try:
            home = importlib.import_module(f".{_HOMES[name]}", __name__)
        except ModuleNotFoundError as error:
            if error.name not in ("launchpad", "reverb"):
                raise
            raise ModuleNotFoundError(
                f"launch.{name} needs {error.name}, which is not installed: pip install "
                "'troupe[distributed]' under Python 3.10; under any other the processes are those "
                'of Ray (troupe[ray]): launch.running.runner("ray", {...}), or --launch ray.',
                name=error.name,
            ) from error
        return getattr(home, name)
    here = f"; it is launch.{_OTHER_NAMES[name]}" if name in _OTHER_NAMES else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{here}")


def __dir__() -> list[str]:
    return sorted(__all__)
