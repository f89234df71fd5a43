"""Pipeline schedules as tables: made, checked, priced and searched for, before anything runs."""

from .edges import Edges as Edges
from .edges import Work as Work
from .edges import chain as chain
from .edges import forward_chains as forward_chains
from .table import PipelineCell as PipelineCell
from .table import PipelineTable as PipelineTable
from .table import parse_cell as parse_cell
from .table import parse_table as parse_table
