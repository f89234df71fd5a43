"""Agents: the builder and the parts it makes."""

from .acting.actor import GenericActor
from .builder import Builder, OfflineBuilder, OffPolicyBuilder
from .catalogue import AGENTS, find_builder
from .interfaces import ActorCore, Update, UpdateOutput
from .learning.learner import SGDLearner
from .variables.client import VariableClient

__all__ = [
    "AGENTS",
    "ActorCore",
    "Builder",
    "GenericActor",
    "OffPolicyBuilder",
    "OfflineBuilder",
    "SGDLearner",
    "Update",
    "UpdateOutput",
    "VariableClient",
    "find_builder",
]
