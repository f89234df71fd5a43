"""Environments of several agents, each of which is a stream of experience of its own."""

from .agent_vector import AgentVector
from .ids import PREFIX, make, num_agents
from .parallel import ParallelEnvironment

__all__ = ["PREFIX", "AgentVector", "ParallelEnvironment", "make", "num_agents"]
