"""Policy and critic of D4PG."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...environments.specs import EnvironmentSpec
from ..networks import critics
from ..networks.core import require_box
from ..networks.policies import make_deterministic_policy
from .config import D4PGConfig


class D4PGNetworks(NamedTuple):
    """A `Network` each; also the parameters of each, and an optimizer's state for each."""

    policy: Any
    """`apply(params, observation [B, ...])` gives actions [B, ...]."""
    critic: Any
    """`apply(params, observation [B, ...], action [B, ...])` gives logits of returns [1, B, Z]."""


def make_networks(spec: EnvironmentSpec, config: D4PGConfig) -> D4PGNetworks:
    """MLPs, with the Nature network before them on images, each with its own.

    Raises:
      ValueError: where actions are not real numbers between finite bounds.
    """
    box = require_box("d4pg", spec)
    return D4PGNetworks(
        make_deterministic_policy(spec, box, config.hidden_sizes, torso=config.torso),
        critics.of_config(spec, config, size=1, num_atoms=config.num_atoms),
    )
