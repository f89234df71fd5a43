"""Gumbel MuZero: search in a learned model (Schrittwieser et al., 2020; Danihelka et al., 2022)."""

from .builder import MuZeroBuilder
from .config import MuZeroConfig

__all__ = ["MuZeroBuilder", "MuZeroConfig"]
