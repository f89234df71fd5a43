"""IMPALA: importance-weighted actor-learner architectures (Espeholt et al., 2018,
https://arxiv.org/abs/1802.01561)."""

from .builder import IMPALABuilder
from .config import IMPALAConfig

__all__ = ["IMPALABuilder", "IMPALAConfig"]
