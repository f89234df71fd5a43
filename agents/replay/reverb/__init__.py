"""The replay in a Reverb server: its tables, what actors write with, and what the learner reads.

The items, their order and the draws are those of the embedded replay: the same code finds the
windows, and the same golden cases test both. acme's adders are not used, since they also write
shortened windows at the start of an episode, repeat the frames of stacks and know no mask; what is
written here is read by acme's and Reverb's datasets alike, as the tables carry their signatures.
Importing this package imports TensorFlow.
"""

from .adder import ReverbAdder
from .proxies import ReverbProxy, ReverbServer
from .reader import ReverbReplay
from .tables import LARGEST, TABLE, make_tables

__all__ = [
    "LARGEST",
    "TABLE",
    "ReverbAdder",
    "ReverbProxy",
    "ReverbReplay",
    "ReverbServer",
    "make_tables",
]
