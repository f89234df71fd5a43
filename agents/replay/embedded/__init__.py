"""The replay inside a process."""

from .embedded_replay import EmbeddedReplay

__all__ = ["EmbeddedReplay"]
