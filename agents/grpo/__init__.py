"""GRPO: group relative policy optimisation of language models (Shao et al., 2024,
https://arxiv.org/abs/2402.03300), with what has since become usual as settings."""

from .builder import GRPOBuilder
from .config import GRPOConfig

__all__ = ["GRPOBuilder", "GRPOConfig"]
