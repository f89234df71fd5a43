"""DQN: deep Q-networks (Mnih et al., 2015), double, dueling, n-step, prioritised."""

from .builder import DQNBuilder
from .config import DQNConfig

__all__ = ["DQNBuilder", "DQNConfig"]
