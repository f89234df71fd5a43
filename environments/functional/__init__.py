"""Environments written in JAX, as pure functions that compiled runs hold in their program."""

from .games import Opponent
from .hosted import FunctionalVector, HostedEnvironment
from .interface import FunctionalEnvironment, StepOutput
from .registry import make

__all__ = [
    "FunctionalEnvironment",
    "FunctionalVector",
    "HostedEnvironment",
    "Opponent",
    "StepOutput",
    "make",
]
