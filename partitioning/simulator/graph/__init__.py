"""The compiler's view of a program: arrays that may become buffers, and what makes them.

The passes of a compiler that matter for memory and time are followed here, one by one: views
disappear, equal computations are shared, matrix products get their operands in a canonical order
(which may need a transposed copy), large reductions work in two stages, checkpoint regions are
inlined, and a scan becomes a loop over stacked buffers that are updated in place.
"""

from .build import build as build
from .nodes import BRANCH as BRANCH
from .nodes import CONSTANT as CONSTANT
from .nodes import ELEMENT as ELEMENT
from .nodes import FUSIBLE as FUSIBLE
from .nodes import LOOP as LOOP
from .nodes import NEWER as NEWER
from .nodes import OPAQUE as OPAQUE
from .nodes import PARAM as PARAM
from .nodes import ArrayGraph as ArrayGraph
from .nodes import ArrayNode as ArrayNode
