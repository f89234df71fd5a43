"""PPO: proximal policy optimisation (Schulman et al., 2017, https://arxiv.org/abs/1707.06347)."""

from .builder import PPOBuilder
from .config import PPOConfig

__all__ = ["PPOBuilder", "PPOConfig"]
