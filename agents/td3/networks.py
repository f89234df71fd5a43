"""Policy and critics of TD3."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...environments.specs import EnvironmentSpec
from ..networks import critics
from ..networks.core import require_box
from ..networks.policies import make_deterministic_policy
from .config import TD3Config


class TD3Networks(NamedTuple):
    """A `Network` each; also the parameters of each, and an optimizer's state for each."""

    policy: Any
    """`apply(params, observation [B, ...])` gives actions [B, ...]."""
    critic: Any
    """`apply(params, observation [B, ...], action [B, ...])` gives values [2, B]."""


def make_networks(spec: EnvironmentSpec, config: TD3Config) -> TD3Networks:
    """MLPs, with the Nature network before them on images, each with its own.

    Raises:
      ValueError: where actions are not real numbers between finite bounds.
    """
    box = require_box("td3", spec)
    return TD3Networks(
        make_deterministic_policy(spec, box, config.hidden_sizes, torso=config.torso),
        critics.of_config(spec, config),
    )
