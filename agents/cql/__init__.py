"""CQL: conservative Q-learning (Kumar et al., 2020), from data alone."""

from .builder import CQLBuilder
from .config import CQLConfig

__all__ = ["CQLBuilder", "CQLConfig"]
