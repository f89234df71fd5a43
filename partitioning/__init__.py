"""The partitioner: one step, written for one device and the global batch, on any mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import tactics as tactics
from .decide.actions import FIRST_DIVISIBLE as FIRST_DIVISIBLE
from .decide.actions import REPLICATED as REPLICATED
from .decide.actions import UNKNOWN as UNKNOWN
from .decide.actions import Action as Action
from .decide.actions import Context as Context
from .decide.actions import Settle as Settle
from .decide.actions import Tactic as Tactic
from .ir.program import Op as Op
from .ir.program import Program as Program
from .ir.program import Value as Value
from .ir.trace import trace as trace
from .mesh import Mesh as Mesh
from .mesh import parse_mesh as parse_mesh
from .partition import Partitioned as Partitioned
from .partition import partition as partition
from .simulator import Calibration as Calibration
from .simulator import Device as Device
from .simulator import Level as Level
from .simulator import Simulator as Simulator
from .simulator import Topology as Topology
from .simulator import calibrate as calibrate
from .simulator import profile as profile
from .simulator import simulate as simulate
from .tactics import parse_schedule as parse_schedule
from .tactics.manual import Manual as Manual
from .tactics.manual import tag as tag

if TYPE_CHECKING:
    from .plan import Plan as Plan
    from .plan import PlanStep as PlanStep


def __getattr__(name: str) -> Any:
    # Not at import, so that `python -m troupe.partitioning.plan` runs a module that is not loaded
    # yet.
    if name in ("Plan", "PlanStep"):
        from . import plan

        return getattr(plan, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
