"""MPO: maximum a posteriori policy optimisation (Abdolmaleki et al., 2018)."""

from .builder import MPOBuilder
from .config import MPOConfig

__all__ = ["MPOBuilder", "MPOConfig"]
