"""The agents by name. Looking a name up imports that agent and no other."""

from __future__ import annotations

import difflib
import importlib
from typing import Any

from ..environments.specs import EnvironmentSpec
from . import action_spaces, other_names
from .builder import Builder
from .wrappers import composition

AGENTS = {
    "bc": ".bc:BCBuilder",
    "c51": ".dqn:C51Builder",
    "cql": ".cql:CQLBuilder",
    "crr": ".crr:CRRBuilder",
    "d4pg": ".d4pg:D4PGBuilder",
    "dqn": ".dqn:DQNBuilder",
    "grpo": ".grpo:GRPOBuilder",
    "impala": ".impala:IMPALABuilder",
    "iql": ".iql:IQLBuilder",
    "mpo": ".mpo:MPOBuilder",
    "muzero": ".muzero:MuZeroBuilder",
    "ppo": ".ppo:PPOBuilder",
    "qrdqn": ".dqn:QRDQNBuilder",
    "r2d2": ".r2d2:R2D2Builder",
    "rainbow": ".dqn:RainbowBuilder",
    "sac": ".sac:SACBuilder",
    "td3": ".td3:TD3Builder",
}
"""Name to module and class; a new agent is a row here."""


def find_builder(name: str) -> type[Builder]:
    """The builder class of an agent: a name of `AGENTS`, or `package.module:Class` of one's own.

    Before it may stand wrappers, each with a +: `rnd+dqn`.

    Raises:
      ValueError: where there is no such agent, listing what there is.
    """
    *wrappers, name = name.split("+")
    if wrappers:
        return composition.compose(wrappers, name, find_builder(name), __name__)
    module, _, attribute = AGENTS.get(name, name).partition(":")
    if not attribute:
        near = difflib.get_close_matches(name.lower(), AGENTS, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        other = other_names.find_agent(name)
        hint = f" In its place: {other}." if other else hint
        raise ValueError(
            f"There is no agent {name!r}.{hint} There are {', '.join(sorted(AGENTS))}; one of your "
            "own is named package.module:Builder."
        )
    try:
        found = getattr(importlib.import_module(module, __package__), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"The agent {name!r} cannot be imported: {error}.") from error
    except Exception as error:  # A mistake in a module of the user's own.
        raise ValueError(
            f"The agent {name!r} cannot be imported: {type(error).__name__}: {error}."
        ) from error
    if not (isinstance(found, type) and issubclass(found, Builder)):
        raise ValueError(f"{name} is not a subclass of troupe.agents.Builder.")
    return found


def driving(spec: EnvironmentSpec) -> list[str]:
    """Names of the agents that can drive an environment, by the table of `action_spaces`."""
    found = action_spaces.driving(spec.actions)
    if spec.action_mask is not None:
        found = [name for name in found if find_builder(name).honours_action_masks]
    return found


def __getattr__(attribute: str) -> Any:
    """The classes that `find_builder` makes of wrappers, by the names that they are pickled by."""
    name, _, kind = attribute.rpartition(" ")
    if kind not in ("builder", "config"):
        raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")
    builder_class = find_builder(name.replace("/", "."))
    return builder_class if kind == "builder" else builder_class.config_class
