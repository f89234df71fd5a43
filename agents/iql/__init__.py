"""IQL: implicit Q-learning (Kostrikov et al., 2021), from data alone."""

from .builder import IQLBuilder
from .config import IQLConfig

__all__ = ["IQLBuilder", "IQLConfig"]
