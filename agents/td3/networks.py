"""Policy and critics of TD3."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...environments.specs import EnvironmentSpec
from ..networks import critics, heads
from ..networks.core import require_box
from ..networks.policies import make_deterministic_policy
from ..networks.torsos import make_torso
from ..networks.windows import make_policy as make_recurrent_policy
from .config import TD3Config


class TD3Networks(NamedTuple):
    """A `Network` each; also the parameters of each, and an optimizer's state for each."""

    policy: Any
    """`apply(params, observation [B, ...])` gives actions [B, ...]; with a core observations are
    an `ObservedWindow`, and its rows are B here and below."""
    critic: Any
    """`apply(params, observation [B, ...], action [B, ...])` gives values [2, B]; logits
    [2, B, Z] where critic_loss is categorical."""


def make_networks(spec: EnvironmentSpec, config: TD3Config) -> TD3Networks:
    """MLPs, with the Nature network before them on images, each with its own.

    Raises:
      ValueError: where actions are not real numbers between finite bounds.
    """
    box = require_box("td3", spec)
    if config.is_recurrent:
        policy = make_recurrent_policy(
            spec,
            config,
            make_torso(spec.observations, config.hidden_sizes, torso=config.torso),
            lambda features: heads.bounded_actions(features, box),
        )
        return TD3Networks(policy, critics.of_windows(spec, config))
    return TD3Networks(
        make_deterministic_policy(spec, box, config.hidden_sizes, torso=config.torso),
        critics.of_config(spec, config),
    )
