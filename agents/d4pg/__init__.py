"""D4PG: distributed distributional deterministic policy gradients (Barth-Maron et al., 2018)."""

from .builder import D4PGBuilder
from .config import D4PGConfig

__all__ = ["D4PGBuilder", "D4PGConfig"]
