"""SAC: soft actor-critic (Haarnoja et al., 2018), with a temperature that adapts."""

from .builder import SACBuilder
from .config import SACConfig

__all__ = ["SACBuilder", "SACConfig"]
