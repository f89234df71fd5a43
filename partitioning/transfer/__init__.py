"""Arrays from one layout to another, as a plan of copies that is priced before anything is moved.

A layout says which block of an array each device holds. A plan lists which blocks travel between
which devices, in rounds; no array is ever whole on a device, unless a layout has it so.
"""

from .layout import ArrayLayout as ArrayLayout
from .layout import input_layouts as input_layouts
from .plan import Copy as Copy
from .plan import TransferPlan as TransferPlan
from .plan import plan as plan
