"""PPO: proximal policy optimisation (Schulman et al., 2017)."""

from .builder import PPOBuilder
from .config import PPOConfig

__all__ = ["PPOBuilder", "PPOConfig"]
