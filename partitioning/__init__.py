"""The partitioner: one step, written for one device and the global batch, on any mesh."""

from . import tactics as tactics
from .actions import FIRST_DIVISIBLE as FIRST_DIVISIBLE
from .actions import REPLICATED as REPLICATED
from .actions import UNKNOWN as UNKNOWN
from .actions import Action as Action
from .actions import Context as Context
from .actions import Manual as Manual
from .actions import Tactic as Tactic
from .actions import tag as tag
from .mesh import Mesh as Mesh
from .mesh import parse_mesh as parse_mesh
from .partition import Partitioned as Partitioned
from .partition import partition as partition
from .plan import Plan as Plan
from .plan import PlanStep as PlanStep
from .program import Op as Op
from .program import Program as Program
from .program import Value as Value
from .tactics import parse_schedule as parse_schedule
from .trace import trace as trace
