"""Rules: for each primitive, how its dimensions tile. One family a file; see :mod:`.factor`."""

from . import (
    contraction,
    convolution,
    elementwise,
    indexing,
    opaque,
    random,
    reduction,
    shape,
    worked,
)
from .factor import WHOLE as WHOLE
from .factor import Rule as Rule
from .factor import RuleBuilder as RuleBuilder
from .registry import has_rule as has_rule
from .registry import is_elementwise as is_elementwise
from .registry import listed as listed
from .registry import register as register
from .registry import rows as rows
from .registry import rule_of as rule_of
from .registry import table as table
from .registry import without_rule as without_rule

__all__ = [
    "WHOLE",
    "Rule",
    "RuleBuilder",
    "contraction",
    "convolution",
    "elementwise",
    "has_rule",
    "indexing",
    "is_elementwise",
    "listed",
    "opaque",
    "random",
    "reduction",
    "register",
    "rows",
    "rule_of",
    "shape",
    "table",
    "without_rule",
    "worked",
]  # fmt: skip
