"""Environments behind one interface: `dm_env`, single or as a vector, from ids or from specs."""

from . import external, fakes, multiagent, text
from .dm_adapter import Conform
from .errors import (
    EnvironmentExitError,
    EnvironmentFault,
    InvalidActionError,
    InvalidObservationError,
    InvalidOptionError,
    InvalidRewardError,
    LostSimulatorError,
    MissingExtraError,
    RenderError,
    UnknownEnvironmentError,
    UnsupportedSpaceError,
)
from .factory import make
from .gymnasium_adapter import GymnasiumEnvironment
from .multiagent import AgentVector, ParallelEnvironment
from .seeding import derive_seed
from .spaces import ActionMode
from .specs import AnswerArray, EnvironmentSpec, StackedArray, make_spec
from .stacking import StackFrames
from .text import TextEnvironment
from .vector import Vector

__all__ = [
    "ActionMode",
    "AgentVector",
    "AnswerArray",
    "Conform",
    "EnvironmentExitError",
    "EnvironmentFault",
    "EnvironmentSpec",
    "GymnasiumEnvironment",
    "InvalidActionError",
    "InvalidObservationError",
    "InvalidOptionError",
    "InvalidRewardError",
    "LostSimulatorError",
    "MissingExtraError",
    "ParallelEnvironment",
    "RenderError",
    "StackFrames",
    "StackedArray",
    "TextEnvironment",
    "UnknownEnvironmentError",
    "UnsupportedSpaceError",
    "Vector",
    "derive_seed",
    "external",
    "fakes",
    "make",
    "make_spec",
    "multiagent",
    "text",
]
