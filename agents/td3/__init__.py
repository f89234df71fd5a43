"""TD3: twin delayed deep deterministic policy gradients (Fujimoto et al., 2018)."""

from .builder import TD3Builder
from .config import TD3Config

__all__ = ["TD3Builder", "TD3Config"]
