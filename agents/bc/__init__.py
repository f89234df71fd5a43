"""BC: behavioural cloning, from data alone.

Pomerleau (1988),
https://papers.nips.cc/paper/1988/hash/812b4ba287f5ee0bc9d43bbf5bbe87fb-Abstract.html.
"""

from .builder import BCBuilder
from .config import BCConfig

__all__ = ["BCBuilder", "BCConfig"]
