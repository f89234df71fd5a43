"""CRR: critic-regularised regression (Wang et al., 2020), from data alone."""

from .builder import CRRBuilder
from .config import CRRConfig

__all__ = ["CRRBuilder", "CRRConfig"]
