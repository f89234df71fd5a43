"""The placement of a learner's step: a mesh, tactics, and the device they are planned for."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Partition:
    """The placement of the learner's step on devices."""

    mesh: Any
    """A `partitioning.Mesh`, over the devices of this process, or of all processes of a learner."""
    schedule: Any
    """Tactics of `partitioning`, in order."""
    recompute: Any = None
    """A `partitioning.Recompute`: how much memory the step may need; None: what it needs."""
    placement: str | None = None
    """"auto": axes and sums are laid onto the hierarchy of links; None: in the mesh's order."""
    device: Any = None
    """The device that it is planned for: a preset's name, a calibration's file, or a
    `partitioning.Device`; None: the devices at hand."""
    decisions: Any = None
    """The `partitioning.PlanDecisions` of a plan made before, which is used as it is; None: the
    step is planned when it is first needed."""
