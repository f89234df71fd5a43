"""Agents: the builder and the parts it makes."""

from .acting.actor import Actor
from .builder import Builder, OffPolicyBuilder
from .catalogue import AGENTS, find_builder
from .interfaces import ActorCore, Update, UpdateOutput
from .learning.learner import Learner
from .variables.client import VariableClient

__all__ = [
    "AGENTS",
    "Actor",
    "ActorCore",
    "Builder",
    "Learner",
    "OffPolicyBuilder",
    "Update",
    "UpdateOutput",
    "VariableClient",
    "find_builder",
]
