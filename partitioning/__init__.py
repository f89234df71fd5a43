"""The partitioner: one step, written for one device, on any mesh."""

from .program import Op as Op
from .program import Program as Program
from .program import Value as Value
from .trace import trace as trace
