"""Learning from data: a dataset of episodes, and the replay over it that nobody writes to."""

from .dataset import Dataset, Episode, of_episodes
from .offline_replay import OfflineReplay

__all__ = ["Dataset", "Episode", "OfflineReplay", "of_episodes"]
