"""R2D2: recurrent replay distributed DQN (Kapturowski et al., 2019)."""

from .builder import R2D2Builder
from .config import R2D2Config

__all__ = ["R2D2Builder", "R2D2Config"]
