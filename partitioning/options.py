"""`PlanOptions`: the options of a plan besides its mesh and schedule, as one frozen value."""

from __future__ import annotations

import dataclasses
import functools

from .rematerialization.parts import CoShard
from .rematerialization.recompute import Recompute
from .simulator.attach import Simulator

REDUCTIONS = ("flat", "synthesised")


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """The options of :func:`~troupe.partitioning.partition`.

    Attributes:
      donate: names of arguments; the step may use their buffers for its results.
      weights: names of arguments that are a model's parameters, which the step reads and does not
        give back, as a policy's does; tactics find and split them like parameters of the state.
      simulate: predicts what a plan costs, and is asked by tactics that search; by default
        `pt.Simulator()`, which predicts for the device at hand.
      bundle: True to let sums over devices wait until one of them is read and exchange them in one
        message then: for devices between which a message costs more than a copy does. Plans do not
        show it.
      recompute: how much of a device's memory the step may need; activations are computed again in
        the backward pass where that takes it. By default nothing is computed again.
      co_shard: layers that run in parts, in turn on the same device; by default none do.
      placement: "auto" to lay the axes of the mesh onto the levels of the simulator's topology as
        is predicted to be quickest, which changes the order of the devices; by default they lie in
        mesh order. The devices are taken to be given as the topology joins them: those of one host
        after those of another.
      reductions: "synthesised" to carry out sums between devices level by level of that topology,
        where that is predicted to be quicker than "flat", at once.

    Raises:
      ValueError: an unknown placement or way of reductions.
      TypeError: a `recompute` or `simulate` of another type.
    """

    donate: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    simulate: Simulator | None = None
    bundle: bool = False
    recompute: Recompute | None = None
    co_shard: CoShard | None = None
    placement: str | None = None
    reductions: str = "flat"

    def __post_init__(self) -> None:
        for field in ("donate", "weights"):
            names = getattr(self, field)
            names = (names,) if isinstance(names, str) else tuple(names)
            object.__setattr__(self, field, names)
        if self.simulate is not None and not isinstance(self.simulate, Simulator):
            raise TypeError(f"simulate is {self.simulate!r}; write e.g. pt.Simulator('h200')")
        if self.recompute is not None and not isinstance(self.recompute, Recompute):
            raise TypeError(f"recompute is {self.recompute!r}; write e.g. pt.Recompute(memory=0.9)")
        if self.co_shard is not None and not isinstance(self.co_shard, CoShard):
            raise TypeError(f"co_shard is {self.co_shard!r}; write e.g. pt.CoShard(parts=4)")
        if self.placement not in (None, "auto"):
            raise ValueError(f"placement is 'auto' or None, not {self.placement!r}")
        if self.reductions not in REDUCTIONS:
            raise ValueError(f"reductions {self.reductions!r} is not one of {list(REDUCTIONS)}")

    @functools.cached_property
    def simulator(self) -> Simulator:
        """The simulator, the default one where none is given."""
        return self.simulate or Simulator()
