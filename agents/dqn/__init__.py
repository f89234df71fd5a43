"""DQN: deep Q-networks (Mnih et al., 2015, https://doi.org/10.1038/nature14236), with options.

Double, dueling, n-step, prioritised, categorical (C51), quantile regression (QR-DQN), Munchausen
and noisy DQN are options of one agent; Rainbow is several of them at once.
"""

from .builder import C51Builder, DQNBuilder, QRDQNBuilder, RainbowBuilder
from .config import C51Config, DQNConfig, QRDQNConfig, RainbowConfig

__all__ = [
    "C51Builder",
    "C51Config",
    "DQNBuilder",
    "DQNConfig",
    "QRDQNBuilder",
    "QRDQNConfig",
    "RainbowBuilder",
    "RainbowConfig",
]
