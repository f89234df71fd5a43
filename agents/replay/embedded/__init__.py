"""The replay inside a process."""

from .replay import EmbeddedReplay

__all__ = ["EmbeddedReplay"]
