"""A replay in a process of its own: many write to it, in chunks of rows, and a learner draws.

The items, their order and the draws are those of the embedded replay: the same code finds the
windows, where rows are written, and gathers them, where they are kept. What carries the calls is
not known here.
"""

from .chunks import Chunk
from .reader import ServedReader
from .shared import SharedReplay
from .writer import ServedWriter

__all__ = ["Chunk", "ServedReader", "ServedWriter", "SharedReplay"]
