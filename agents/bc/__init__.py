"""BC: behavioural cloning (Pomerleau, 1988), from data alone."""

from .builder import BCBuilder
from .config import BCConfig

__all__ = ["BCBuilder", "BCConfig"]
