"""IMPALA: importance-weighted actor-learner architectures (Espeholt et al., 2018)."""

from .builder import IMPALABuilder
from .config import IMPALAConfig

__all__ = ["IMPALABuilder", "IMPALAConfig"]
