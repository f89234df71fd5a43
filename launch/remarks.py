"""Remarks for users on an environment, before an agent is trained on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..agents.networks import images, own
from .experiment import Experiment

if TYPE_CHECKING:
    from ..environments import Vector


def remarks(experiment: Experiment, environment: Vector) -> tuple[str, ...]:
    """Returns sentences that no error is made of; most environments have none.

    Args:
      experiment: what is run.
      environment: as its factory makes it.
    """
    theirs = experiment.network_factory or own.named(experiment.builder.config)
    seen = () if theirs else images.remarks(environment.observation_spec())
    return *getattr(environment, "remarks", ()), *seen
