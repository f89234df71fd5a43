"""Rules: for each primitive, how its dimensions tile. One family a file; see :mod:`.factor`."""

from . import contraction as contraction
from . import convolution as convolution
from . import elementwise as elementwise
from . import indexing as indexing
from . import opaque as opaque
from . import random as random
from . import reduction as reduction
from . import shape as shape
from . import worked as worked
from .factor import REPLICATED_FACTOR as REPLICATED_FACTOR
from .factor import Rule as Rule
from .factor import RuleBuilder as RuleBuilder
from .registry import has_rule as has_rule
from .registry import is_zero as is_zero
from .registry import listed as listed
from .registry import register as register
from .registry import rows as rows
from .registry import rule_of as rule_of
from .registry import table as table
from .registry import without_rule as without_rule
from .traits import Traits as Traits
from .traits import traits_of as traits_of
